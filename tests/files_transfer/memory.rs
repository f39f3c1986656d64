//! Files of any size, and readers that stop, in flat memory.

use super::*;

const HUGE: u64 = 2 << 30;

/// A thread that looks at the runtime's memory, and the most it saw.
struct Gauge {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

// === impl Gauge ===

impl Gauge {
    fn start(pid: u32) -> Self {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = thread::spawn({
            let (stop, most) = (stop.clone(), most.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    most.fetch_max(own_memory(pid), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(2));
                }
            }
        });
        Self {
            stop,
            most,
            thread: Some(thread),
        }
    }

    fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

fn bytes_of_hex(digits: &[u8]) -> Bytes {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The chunk at an index: like no other, and cheap to make.
fn numbered(pattern: &[u8], index: u64) -> Bytes {
    let mut chunk = pattern.to_vec();
    chunk[..8].copy_from_slice(&index.to_le_bytes());
    chunk.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gibibytes_pass_both_ways_in_flat_memory() {
    within(async {
        let runtime = Runtime::start().await;
        let free = statvfs(runtime.workspace()).unwrap();
        let free = free.f_bavail * free.f_frsize;
        assert!(
            free > HUGE + (1 << 30),
            "this test needs 3 GiB of disk, and there are {free} bytes"
        );
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let mut pattern = vec![0; CHUNK];
        seeded().fill_bytes(&mut pattern);
        let count = HUGE / CHUNK as u64;
        let before = runtime.own_memory();
        let gauge = Gauge::start(runtime.pid());

        let (sender, receiver) = mpsc::channel(4);
        let sending = tokio::spawn({
            let (pattern, view) = (pattern.clone(), view.clone());
            async move {
                // Not by this process, which is not built for speed.
                let mut hasher = Command::new("sha256sum")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut input = hasher.stdin.take().unwrap();
                let send = async |message| sender.send(UploadRequest { message: Some(message) }).await.unwrap();
                send(Message::Start(upload_start(&view))).await;
                send(Message::Entry(UploadEntry {
                    path: "/huge".into(),
                    size: Some(HUGE),
                    ..Default::default()
                }))
                .await;
                for index in 0..count {
                    let chunk = numbered(&pattern, index);
                    input.write_all(&chunk).await.unwrap();
                    send(Message::Chunk(chunk)).await;
                }
                drop(input);
                let sha256 = bytes_of_hex(&hasher.wait_with_output().await.unwrap().stdout[..64]);
                send(Message::EntryEnd(UploadEntryEnd { sha256: sha256.clone() })).await;
                sha256
            }
        });
        let answer = client.upload(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let sha256 = sending.await.unwrap();
        assert_eq!(
            (answer.entries, answer.bytes, answer.failures_total),
            (1, HUGE, 0),
            "{answer:?}"
        );
        let up = gauge.finish();
        let file = fs::File::open(runtime.workspace().join("huge")).unwrap();
        let mut found = vec![0; CHUNK];
        for index in [0, 1, count / 2, count - 1] {
            file.read_exact_at(&mut found, index * CHUNK as u64).unwrap();
            assert!(found == numbered(&pattern, index), "chunk {index}");
        }

        let gauge = Gauge::start(runtime.pid());
        let mut stream = client
            .download(download_request(&view, &["/huge"], TransferFormat::Unspecified))
            .await
            .unwrap()
            .into_inner();
        let (mut received, mut ended, mut summary) = (0, None, None);
        while let Some(answer) = stream.message().await.unwrap() {
            match answer.message.unwrap() {
                download_response::Message::Chunk(chunk) => {
                    assert!(chunk == numbered(&pattern, received / CHUNK as u64), "at {received}");
                    received += chunk.len() as u64;
                }
                download_response::Message::EntryEnd(end) => ended = Some(end),
                download_response::Message::Summary(end) => summary = Some(end),
                download_response::Message::Failure(failure) => panic!("{failure:?}"),
                _ => {}
            }
        }
        let down = gauge.finish();
        fs::remove_file(runtime.workspace().join("huge")).unwrap();
        assert_eq!((received, ended.unwrap().sha256), (HUGE, sha256));
        assert_eq!(summary.unwrap().bytes, HUGE);
        println!("memory: {before} before, at most {up} while uploading and {down} while downloading");
        assert!(up <= before + MAX_GROWTH, "{up} while uploading, {before} before");
        assert!(down <= before + MAX_GROWTH, "{down} while downloading, {before} before");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_that_nobody_reads_takes_no_memory() {
    within(async {
        let runtime = Runtime::start().await;
        fs::File::create(runtime.workspace().join("sparse"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let mut client = runtime.connect().await;
        let before = runtime.own_memory();
        for format in [TransferFormat::Files, TransferFormat::Tar] {
            let request = download_request(&rooted(&runtime.workspace()), &["/sparse"], format);
            let mut stream = client.download(request).await.unwrap().into_inner();
            stream.message().await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = runtime.own_memory();
            assert!(
                now <= before + MAX_GROWTH,
                "{now} with a reader that stopped, {before} before"
            );
        }
    })
    .await;
}
