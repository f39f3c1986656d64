//! A runtime that is killed in the midst of writes tears no file.

use super::*;

const FILES: usize = 50;
const PER_BATCH: usize = 10;

/// The whole of a file, of which no part is like another's.
fn generation(file: usize, generation: usize) -> String {
    format!("file {file} generation {generation}\n").repeat(400)
}

fn is_whole(file: usize, content: &str) -> bool {
    let number = content
        .lines()
        .next()
        .and_then(|line| line.rsplit(' ').next()?.parse().ok());
    number.is_some_and(|number| content == generation(file, number))
}

async fn overwrite(mut client: Client, view: FileView, worker: usize, writes: usize) -> usize {
    let mut answered = 0;
    for number in 0..writes / PER_BATCH {
        let ops = (0..PER_BATCH)
            .map(|n| {
                let file = (number * PER_BATCH + n) % FILES;
                write(format!("/{file}"), generation(file, 1 + worker * writes + number))
            })
            .collect();
        if client.file_ops(batch(&view, ops)).await.is_err() {
            break;
        }
        answered += PER_BATCH;
    }
    answered
}

/// On file systems with and without unnamed temporary files.
async fn survives_kills(mut runtime: Runtime, directory: &Path, rounds: usize) {
    let mut random = seeded();
    let view = rooted(directory);
    let mut client = runtime.connect().await;
    let ops = (0..FILES)
        .map(|file| write(format!("/{file}"), generation(file, 0)))
        .collect();
    run_ops(&mut client, &view, ops).await;
    let mut cut = 0;
    for round in 0..rounds {
        let workers: Vec<_> = {
            let mut workers = Vec::new();
            for worker in 0..2 {
                let client = runtime.connect().await;
                workers.push(tokio::spawn(overwrite(client, view.clone(), worker, 500)));
            }
            workers
        };
        tokio::time::sleep(Duration::from_micros(random.random_range(0..60_000))).await;
        runtime.kill();
        let mut answered = 0;
        for worker in workers {
            answered += worker.await.unwrap();
        }
        cut += usize::from(answered > 0 && answered < 1_000);
        for file in 0..FILES {
            let content = fs::read_to_string(directory.join(file.to_string())).unwrap();
            assert!(
                is_whole(file, &content),
                "round {round}: file {file} is torn: {} bytes",
                content.len()
            );
        }
        runtime.restart().await;
        assert_eq!(litter(directory), Vec::<PathBuf>::new(), "round {round}");
        assert_eq!(fs::read_dir(directory).unwrap().count(), FILES);
    }
    println!("{cut} of {rounds} kills came in the midst of the writes");
    assert!(cut > 0, "no kill came in the midst of the writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_midst_of_a_thousand_writes_tears_no_file() {
    within(async {
        let runtime = Runtime::start().await;
        let directory = runtime.workspace().join("d");
        fs::create_dir(&directory).unwrap();
        survives_kills(runtime, &directory, 25).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_midst_of_uploads_leaves_the_old_files() {
    within(async {
        let mut runtime = Runtime::start().await;
        let mut random = seeded();
        let directory = runtime.workspace().join("d");
        fs::create_dir(&directory).unwrap();
        let view = rooted(&directory);
        for _ in 0..10 {
            for file in 0..FILES {
                fs::write(directory.join(file.to_string()), generation(file, 0)).unwrap();
            }
            let mut client = runtime.connect().await;
            let view = view.clone();
            let sending = tokio::spawn(async move {
                for number in 1.. {
                    let start = upload_start(&view);
                    let messages = (0..FILES).flat_map(|file| {
                        let entry = file_at(&format!("/{file}"));
                        upload_entry(entry, generation(file, number).as_bytes())
                    });
                    if upload(&mut client, start, messages.collect()).await.is_err() {
                        return;
                    }
                }
            });
            tokio::time::sleep(Duration::from_micros(random.random_range(500..40_000))).await;
            runtime.kill();
            sending.await.unwrap();
            for file in 0..FILES {
                let content = fs::read_to_string(directory.join(file.to_string())).unwrap();
                assert!(is_whole(file, &content), "file {file} is torn");
            }
            runtime.restart().await;
            assert_eq!(litter(&directory), Vec::<PathBuf>::new());
            assert_eq!(fs::read_dir(&directory).unwrap().count(), FILES);
        }
    })
    .await;
}
