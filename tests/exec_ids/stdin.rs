//! A byte of stdin arrives once, and what stdin refuses.

use super::*;

#[tokio::test]
async fn stdin_repeated_after_a_lost_answer_arrives_once() {
    let mut random = seeded();
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    for terminal in [false, true] {
        let mut sent = vec![0; if terminal { 1 << 18 } else { 4 << 20 }];
        random.fill_bytes(&mut sent);
        let id = new_id("stdin");
        let spec = if terminal {
            // Raw, and no echo: every byte is passed on.
            ExecSpec {
                pty: Some(Pty::default()),
                ..shell("stty raw -echo; printf ready; head -c 262144")
            }
        } else {
            with_stdin(shell("printf ready; cat"))
        };
        client.start_exec(start_request(&id, spec)).await.unwrap();
        let follower = tokio::spawn({
            let (mut client, id) = (client.clone(), id.clone());
            async move { collect(&mut client, &id, ExecOffsets::default()).await }
        });
        while get(&mut client, &id).await.written.unwrap().stdout < 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (mut known, mut cuts) = (0, 0);
        while known < sent.len() {
            let end = (known + random.random_range(1..=256 << 10)).min(sent.len());
            let request = write_request(&id, known as u64, &sent[known..end], !terminal && end == sent.len());
            // Counted in turns of the scheduler, not in time: an idle machine answers before any timer is over.
            // The first is lost for certain.
            let patience = if cuts == 0 { 0 } else { random.random_range(0..400) };
            let impatience = async {
                for _ in 0..patience {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                answer = client.write_exec(request) => {
                    known = usize::try_from(answer.unwrap().into_inner().stdin.unwrap().offset).unwrap();
                }
                // The answer is lost: nobody knows how much of it was written.
                () = impatience => cuts += 1,
            }
        }
        println!("{cuts} cuts");
        assert!(cuts > 0);
        if !terminal {
            // The last answer may have been lost, too: a close is repeated like any write.
            let close = client
                .write_exec(write_request(&id, sent.len() as u64, b"", true))
                .await
                .unwrap();
            assert!(close.into_inner().stdin.unwrap().closed);
        }
        let output = tokio::time::timeout(LIMIT, follower).await.unwrap().unwrap();
        assert_eq!(output.stdout.len(), 5 + sent.len());
        assert!(output.stdout[5..] == sent, "what arrived is not what was sent");
        assert_eq!(get(&mut client, &id).await.stdin_offset, sent.len() as u64);
    }
}

#[tokio::test]
async fn what_stdin_refuses() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let id = new_id("stdin");
    client
        .start_exec(start_request(
            &id,
            with_stdin(shell("read line; echo $line; exec sleep 1000")),
        ))
        .await
        .unwrap();
    let by = |writer: &str, offset, data: &[u8]| WriteExecRequest {
        writer: writer.to_owned(),
        max_wait: millis(300),
        ..write_request(&id, offset, data, false)
    };
    assert_eq!(
        client
            .write_exec(by("a", 0, b"one\n"))
            .await
            .unwrap()
            .into_inner()
            .stdin
            .unwrap()
            .offset,
        4
    );
    for (request, wanted) in [
        (by("b", 4, b"x"), ErrorReason::StdinTaken),
        (by("a", 5, b"x"), ErrorReason::StdinGap),
    ] {
        assert_eq!(reason(&client.write_exec(request).await.unwrap_err()), wanted);
    }
    // The program reads no more: the writer is held back and told how far it came.
    let much = vec![b'y'; 1 << 20];
    let part = client
        .write_exec(by("a", 4, &much))
        .await
        .unwrap()
        .into_inner()
        .stdin
        .unwrap();
    assert!(part.offset > 4 && part.offset < much.len() as u64 && !part.closed);
    assert_eq!(get(&mut client, &id).await.stdin_offset, part.offset);
    let close = write_request(&id, part.offset, b"", true);
    let closed = client
        .write_exec(WriteExecRequest {
            writer: "a".into(),
            ..close.clone()
        })
        .await
        .unwrap();
    assert!(closed.into_inner().stdin.unwrap().closed);
    let late = client.write_exec(by("a", part.offset, b"x")).await.unwrap_err();
    assert_eq!(reason(&late), ErrorReason::StdinClosed);

    // A program that has closed its side, or is gone.
    let deaf = new_id("deaf");
    client.run(run_request(&deaf, shell("true"))).await.unwrap();
    let refused = client
        .write_exec(write_request(&deaf, 0, b"x", false))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::StdinNotOpen);
    let gone = new_id("gone");
    client
        .start_exec(start_request(&gone, with_stdin(shell("exit 0"))))
        .await
        .unwrap();
    let exec = exited(&mut client, &gone).await;
    assert_eq!(exec.exit.unwrap().status, Some(Status::Code(0)));
    loop {
        // Until its end is noticed the pipe may take it.
        match client.write_exec(write_request(&gone, 0, b"x", false)).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(refused) => break assert_eq!(reason(&refused), ErrorReason::StdinClosed),
        }
    }
}
