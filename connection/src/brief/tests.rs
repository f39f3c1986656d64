use std::{
    future::pending,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::{Semaphore, oneshot},
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Status};

use super::{BriefLine, Outcome, answer, wire::GREETING};
use crate::{ByteStream, Keepalive, LineError};

const EVERY: Duration = Duration::from_secs(10);

fn line(when_idle: bool) -> BriefLine {
    BriefLine::new(Keepalive {
        every: EVERY,
        patience: EVERY,
        when_idle,
    })
}

async fn opened(stream: impl ByteStream + 'static) -> io::Result<Box<dyn ByteStream>> {
    Ok(Box::new(stream))
}

async fn nothing_to_open() -> io::Result<Box<dyn ByteStream>> {
    unreachable!("there is a connection")
}

/// Answers with the method and the message, or refuses.
async fn echo(method: Bytes, message: Bytes) -> Result<Bytes, Status> {
    match &method[..] {
        b"refuse" => Err(Status::with_details(
            Code::NotFound,
            "there is no ß",
            Bytes::from_static(b"\0details\xff"),
        )),
        b"late" => {
            sleep(Duration::from_millis(u64::from(message[0]))).await;
            Ok(message)
        }
        b"twice" => Ok([&message[..], &message].concat().into()),
        _ => Ok([&method[..], b":", &message].concat().into()),
    }
}

/// A stream to one who echoes, with so much room on the way.
fn to_echo(room: usize) -> DuplexStream {
    let (ours, theirs) = duplex(room);
    tokio::spawn(answer(Box::new(theirs), pending(), echo));
    ours
}

async fn ask(line: &BriefLine, method: &str, message: impl Into<Bytes>) -> Result<Bytes, Status> {
    told(line.call(method, message.into(), || opened(to_echo(1 << 16))).await)
}

fn told(outcome: Result<Outcome, LineError>) -> Result<Bytes, Status> {
    match outcome.unwrap() {
        Outcome::Answer(message) => Ok(message),
        Outcome::Refusal(status) => Err(status),
        Outcome::NotSpoken(_) => panic!("it speaks as we do"),
    }
}

/// A peer that greets and then does as `then` says with what is left of the stream.
fn to_greeter<F: Future<Output = ()> + Send>(then: impl FnOnce(DuplexStream) -> F + Send + 'static) -> DuplexStream {
    let (ours, mut theirs) = duplex(1 << 16);
    tokio::spawn(async move {
        theirs.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        theirs.write_all(&GREETING).await.unwrap();
        then(theirs).await;
    });
    ours
}

#[tokio::test(start_paused = true)]
async fn a_call_has_its_own_answer_and_a_refusal_all_that_was_said() {
    let line = line(true);
    assert_eq!(ask(&line, "Method", "message").await.unwrap(), "Method:message");
    assert_eq!(ask(&line, "", "").await.unwrap(), ":");
    let refused = ask(&line, "refuse", "").await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "there is no ß"));
    assert_eq!(refused.details(), b"\0details\xff");
    // Those that are asked first are answered last.
    let begun = Instant::now();
    let late = join_all((0..50u8).rev().map(|n| ask(&line, "late", vec![n; 3]))).await;
    for (answer, n) in late.into_iter().zip((0..50u8).rev()) {
        assert_eq!(answer.unwrap(), vec![n; 3]);
    }
    assert_eq!(begun.elapsed(), Duration::from_millis(49), "one after the other");
}

/// Through a stream that takes seven bytes at a time, while others call.
#[tokio::test]
async fn messages_of_any_size_pass_whole_by_any_stream() {
    let line = line(true);
    let call = |size: usize| {
        let message = Bytes::from_iter((0..size).map(|n| (n % 251) as u8));
        let answered = line.call("m", message.clone(), || opened(to_echo(7)));
        async move {
            let answer = told(answered.await).unwrap();
            assert_eq!(answer.len(), size + 2);
            assert!(answer[2..] == message, "{size}");
        }
    };
    join_all([0, 1, 100_000, 8, 16 << 10, (16 << 10) + 1, 5, 300_000].map(call)).await;
    let line = self::line(true);
    let fits = Bytes::from(vec![1; (4 << 20) + 10]);
    assert_eq!(ask(&line, "m", fits.clone()).await.unwrap().len(), fits.len() + 2);
    let refused = ask(&line, "m", vec![1; 5 << 20]).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange);
    let refused = ask(&line, "twice", fits).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange);
    assert_eq!(ask(&line, "m", "after").await.unwrap(), "m:after");
}

/// Counts those that are dropped before their end.
struct Left(Arc<AtomicUsize>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A stream to one who answers what has a permit, and counts who leaves before.
fn to_waiter(
    permits: Arc<Semaphore>,
    left: Arc<AtomicUsize>,
    over: impl Future<Output = ()> + Send + 'static,
) -> DuplexStream {
    let (ours, theirs) = duplex(1 << 16);
    tokio::spawn(answer(Box::new(theirs), over, move |_, message| {
        let (permits, left) = (Arc::clone(&permits), Left(Arc::clone(&left)));
        async move {
            permits.acquire().await.unwrap().forget();
            std::mem::forget(left);
            Ok(message)
        }
    }));
    ours
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn who_leaves_is_not_worked_for_any_more_and_the_others_are() {
    let (permits, left) = (Arc::new(Semaphore::new(0)), Arc::<AtomicUsize>::default());
    let line = line(true);
    let call = |message: &'static str| {
        let stream = to_waiter(Arc::clone(&permits), Arc::clone(&left), pending());
        let line = line.clone();
        async move {
            line.call("m", Bytes::from_static(message.as_bytes()), || opened(stream))
                .await
        }
    };
    let stays = tokio::spawn(call("stays"));
    assert!(timeout(Duration::from_millis(50), call("leaves")).await.is_err());
    until(|| left.load(Ordering::SeqCst) == 1).await;
    // A connection that rests is closed, but not under a call.
    line.rest(Duration::ZERO);
    permits.add_permits(1);
    assert_eq!(told(stays.await.unwrap()).unwrap(), "stays");
    assert_eq!(left.load(Ordering::SeqCst), 1);
    let last = tokio::spawn(call("is cut off"));
    sleep(Duration::from_millis(50)).await;
    last.abort();
    drop(last);
    until(|| left.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn at_the_end_what_was_called_is_answered_and_the_next_call_goes_elsewhere() {
    let (permits, left) = (Arc::new(Semaphore::new(0)), Arc::<AtomicUsize>::default());
    let (end, ended) = oneshot::channel::<()>();
    let line = line(true);
    let stream = to_waiter(Arc::clone(&permits), Arc::clone(&left), async { drop(ended.await) });
    let called = tokio::spawn({
        let line = line.clone();
        async move { line.call("m", Bytes::from(vec![7; 100_000]), || opened(stream)).await }
    });
    sleep(Duration::from_millis(50)).await;
    end.send(()).unwrap();
    sleep(Duration::from_millis(50)).await;
    permits.add_permits(1);
    assert_eq!(told(called.await.unwrap()).unwrap().len(), 100_000);
    // Until the end is noticed a call may still go there; that it was not answered is told.
    let again = async {
        loop {
            match line.call("m", Bytes::new(), || opened(to_echo(1 << 10))).await {
                Ok(outcome) => break told(Ok(outcome)),
                Err(error) => assert!(matches!(error, LineError::Cut(_)), "{error:?}"),
            }
        }
    };
    assert_eq!(again.await.unwrap(), "m:");
}

#[tokio::test]
async fn a_connection_that_dies_ends_its_calls_and_the_next_opens_another() {
    let line = line(true);
    let dying = to_greeter(|mut stream| async move {
        let _ = stream.read(&mut [0; 1]).await;
    });
    let call = line.call("m", Bytes::new(), || opened(dying)).await;
    assert!(matches!(call, Err(LineError::Cut(_))), "{call:?}");
    assert_eq!(ask(&line, "m", "again").await.unwrap(), "m:again");
    let kept = line.call("m", Bytes::new(), nothing_to_open).await;
    assert_eq!(told(kept).unwrap(), "m:");
}

#[tokio::test]
async fn one_who_speaks_something_else_is_not_called() {
    for says in [
        &b"\0\0\x12\x04\0\0\0\0\0"[..],
        b"SANDGATE BRIEF 2",
        b"HTTP/1.1 400 Bad Request\r\n",
    ] {
        let (ours, mut theirs) = duplex(1 << 10);
        theirs.write_all(says).await.unwrap();
        let call = line(true).call("m", Bytes::from_static(b"m"), || opened(ours)).await;
        assert!(
            matches!(&call, Ok(Outcome::NotSpoken(message)) if message == "m"),
            "{call:?}"
        );
    }
    let (ours, theirs) = duplex(1 << 10);
    drop(theirs);
    let call = line(true).call("m", Bytes::new(), || opened(ours)).await;
    assert!(matches!(call, Err(LineError::Connect(_))), "{call:?}");
}

#[tokio::test]
async fn what_is_no_frame_ends_the_connection_at_either_end() {
    let frame = |length: u32, kind: u8, body: &[u8]| [&length.to_le_bytes()[..], &[1, 0, 0, 0, kind], body].concat();
    let wrong = [
        frame(u32::MAX, 2, b""),
        frame((4 << 20) + (64 << 10) + 1, 1, b""),
        frame(0, 0, b""),
        frame(0, 77, b""),
        frame(5, 2, b"cut"),
    ];
    for wrong in wrong.clone() {
        let stream = to_greeter(|mut stream| async move {
            let _ = stream.write_all(&wrong).await;
            let _ = stream.shutdown().await;
            pending::<()>().await;
        });
        let call = line(true).call("m", Bytes::new(), || opened(stream)).await;
        assert!(matches!(call, Err(LineError::Cut(_))), "{call:?}");
    }
    let also_wrong = [frame(0, 2, b""), frame(0, 1, b""), frame(3, 1, b"\x03ab")];
    for wrong in wrong.into_iter().chain(also_wrong) {
        let (mut ours, theirs) = duplex(1 << 16);
        ours.write_all(&[&GREETING[..], &wrong].concat()).await.unwrap();
        ours.shutdown().await.unwrap();
        let ended = answer(Box::new(theirs), pending(), echo).await;
        assert!(ended.is_err(), "{wrong:?}");
    }
    // A refusal of nothing, and one that says more than there is.
    for body in [&b""[..], b"\x05\xff\xff\xff\xffshort", b"\0\0\0\0\0"] {
        let refusal = frame(body.len() as u32, 3, body);
        let stream = to_greeter(|mut stream| async move {
            // Behind the call.
            stream.read_exact(&mut [0; 1]).await.unwrap();
            stream.write_all(&refusal).await.unwrap();
            pending::<()>().await;
        });
        let call = line(true).call("m", Bytes::new(), || opened(stream)).await;
        assert_eq!(told(call).unwrap_err().code(), Code::Unknown);
    }
}

/// Each end is sent more than it takes at a time, and none waits for the other.
#[tokio::test]
async fn large_messages_go_both_ways_at_once() {
    let line = line(true);
    let large = Bytes::from(vec![7; 3 << 20]);
    let calls = (0..12).map(|_| ask(&line, "m", large.clone()));
    for answer in timeout(Duration::from_secs(60), join_all(calls)).await.unwrap() {
        assert_eq!(answer.unwrap().len(), large.len() + 2);
    }
}

#[tokio::test]
async fn what_is_not_read_is_bounded_and_goes_with_whoever_leaves() {
    let line = line(true);
    let (reads, reading) = oneshot::channel::<()>();
    let (seen, read) = oneshot::channel();
    let stream = to_greeter(|mut stream| async move {
        reading.await.unwrap();
        let mut all = 0;
        let mut space = vec![0; 1 << 16];
        while let Ok(Ok(count @ 1..)) = timeout(Duration::from_millis(300), stream.read(&mut space)).await {
            all += count;
        }
        seen.send(all).unwrap();
    });
    let mut stream = Some(stream);
    for number in 0..40 {
        let patience = Duration::from_millis(if number == 0 { 500 } else { 5 });
        let large = Bytes::from(vec![7; 3 << 20]);
        let call = line.call("m", large, || opened(stream.take().unwrap()));
        assert!(timeout(patience, call).await.is_err());
    }
    reads.send(()).unwrap();
    // The first one, of which a part was written before it was left.
    let all = read.await.unwrap();
    assert!(((3 << 20)..(4 << 20)).contains(&all), "{all}");
}

#[tokio::test]
async fn one_who_speaks_something_newer_is_told_what_is_spoken_here() {
    let (mut ours, theirs) = duplex(1 << 10);
    ours.write_all(b"SANDGATE BRIEF 2").await.unwrap();
    assert!(answer(Box::new(theirs), pending(), echo).await.is_err());
    let mut said = Vec::new();
    ours.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, GREETING);
}

/// Answers that nobody takes are not made without end.
#[tokio::test]
async fn who_does_not_read_is_not_read_from() {
    let (mut ours, theirs) = duplex(1 << 10);
    let made = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&made);
    tokio::spawn(answer(Box::new(theirs), pending(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(Bytes::from_static(&[0; 1 << 20])) }
    }));
    ours.write_all(&GREETING).await.unwrap();
    ours.read_exact(&mut [0; GREETING.len()]).await.unwrap();
    let call = [&2u32.to_le_bytes()[..], &[1, 0, 0, 0, 1], b"\x01m"].concat();
    let calling = async {
        for _ in 0..10_000 {
            ours.write_all(&call).await.unwrap();
        }
    };
    assert!(timeout(Duration::from_millis(300), calling).await.is_err());
    // Those whose frames had been read when the bound was reached.
    let made = made.load(Ordering::SeqCst);
    assert!((4..600).contains(&made), "{made}");
}

#[tokio::test(start_paused = true)]
async fn one_who_falls_silent_is_noticed_and_one_who_works_is_not_silent() {
    let begun = Instant::now();
    let stream = to_greeter(|stream| async move {
        let _open = stream;
        pending().await
    });
    let silent = line(false).call("m", Bytes::new(), || opened(stream)).await;
    assert!(matches!(silent, Err(LineError::Cut(_))), "{silent:?}");
    assert_eq!(begun.elapsed().as_secs(), 2 * EVERY.as_secs());
    let (ours, theirs) = duplex(1 << 10);
    tokio::spawn(answer(Box::new(theirs), pending(), |_, message| async {
        sleep(EVERY * 20).await;
        Ok(message)
    }));
    let slow = line(false)
        .call("m", Bytes::from_static(b"slow"), || opened(ours))
        .await;
    assert_eq!(told(slow).unwrap(), "slow");
}
