//! Files: large ones, small ones, many at once, and searching them.

use std::{
    cell::Cell,
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use bytes::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags};
use sandgate::v1;
use sandgate_bench::measure::{Entrant, Estimate, take_rows, take_turns};
use sandgate_tests::procs::own_memory;

use super::{Bench, Entry, commands::ROW};
use crate::{ours::Ours, work};

const BATCH: usize = 100;
const LARGE: &str = "A file of 1 GiB";
const SMALL: &str = "Small files";
const TAR: &str = "10,000 small files as a tar";
const GREP: &str = "grep over 20,000 files, 200 MB";

pub(crate) async fn large(bench: &mut Bench) {
    let size = bench.scale.bytes(1 << 30);
    let (sandbox, floor) = (&bench.ours.sandbox, &bench.floor.two_hops);
    let watched = [
        ("client", std::process::id()),
        ("server", bench.ours.server.pid()),
        ("runtime", u32::try_from(bench.ours.runtime_pid()).unwrap()),
    ];
    let growth: Vec<Cell<u64>> = watched.iter().map(|_| Cell::new(0)).collect();
    let grown = &growth;
    let upload = || watching(&watched, grown, work::upload(sandbox, size));
    let download = || watching(&watched, grown, work::download(sandbox, size));
    let rounds = bench.scale.rounds(7);
    let up = [
        Entrant::new("sandgate", upload),
        Entrant::new("floor", || work::upload_to_floor(floor, size)),
    ];
    let up = take_turns(rounds, &up).await;
    let down = [
        Entrant::new("sandgate", download),
        Entrant::new("floor", || work::download_from_floor(floor, size)),
    ];
    let down = take_turns(rounds, &down).await;
    let speed = |name| Entry::speed(LARGE, name, "the floor's stream").at_least(0.7);
    let report = &mut bench.report;
    report.add(speed("upload").is(up.ratio("floor", "sandgate")));
    report.add(speed("download").is(down.ratio("floor", "sandgate")));
    for ((name, _), grown) in watched.iter().zip(&growth) {
        let grown = grown.get() as f64 / f64::from(1 << 20);
        let name = format!("most that the {name} grew meanwhile");
        report.add(Entry::mebibytes(LARGE, name).at_most(32.0).is(Estimate::exact(grown)));
    }
}

/// Does the work, and notes the most that each process grew meanwhile.
async fn watching(processes: &[(&str, u32)], growth: &[Cell<u64>], work: impl Future<Output = ()>) {
    let before: Vec<u64> = processes.iter().map(|(_, pid)| own_memory(*pid)).collect();
    let watching = async {
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            for (((_, pid), before), most) in processes.iter().zip(&before).zip(growth) {
                most.set(most.get().max(own_memory(*pid).saturating_sub(*before)));
            }
        }
    };
    tokio::select! {
        biased;
        () = work => {}
        () = watching => {}
    }
}

pub(crate) async fn small(bench: &mut Bench) {
    let (sandbox, floor) = (&bench.ours.sandbox, &bench.floor.two_hops);
    sandbox
        .upload(work::SMALL_FILE, vec![b'x'; work::SMALL_BYTES])
        .await
        .unwrap();
    let entrants = [
        Entrant::new("sandgate", || work::read(sandbox, 1)),
        Entrant::new("floor", || work::echo(floor, 1)),
    ];
    let costs = take_rows(bench.scale.rounds(300), ROW, &entrants).await.all;
    let one = Entry::cost(SMALL, "FileOps, a read of 4 KiB", "the floor's echo").at_most(1.3);
    bench.report.add(one.is(costs.ratio("sandgate", "floor")));
    let entrants = [
        Entrant::new("batch", || work::read(sandbox, BATCH)),
        Entrant::new("singly", || async {
            for _ in 0..BATCH {
                work::read(sandbox, 1).await;
            }
        }),
        Entrant::new("bare", || async { read_bare(&bench.ours) }),
        Entrant::new("floor", || work::echo(floor, BATCH)),
        Entrant::new("floor, singly", || async {
            for _ in 0..BATCH {
                work::echo(floor, 1).await;
            }
        }),
    ];
    let costs = take_turns(bench.scale.rounds(50), &entrants).await;
    let batch = Entry::speed(SMALL, "FileOps, a batch of 100 reads", "100 calls").at_least(20.0);
    bench.report.add(batch.is(costs.ratio("singly", "batch")));
    // What of it is the reading alone, with no way there and back, and the way alone, where nobody reads anything.
    let bare = Entry::speed(SMALL, "the kernel alone, which opens and reads 100 files", "100 calls");
    bench.report.add(bare.is(costs.ratio("singly", "bare")));
    let answer = Entry::speed(SMALL, "the floor, an answer of 100 times 4 KiB", "100 calls");
    bench.report.add(answer.is(costs.ratio("floor, singly", "floor")));
    let batch = Entry::cost(
        SMALL,
        "FileOps, a batch of 100 reads",
        "the floor's answer of as many bytes",
    );
    bench.report.add(batch.is(costs.ratio("batch", "floor")));
}

/// What the runtime asks of the kernel for a batch of reads, and nothing else: in the sandbox's own file system, by no call of
/// ours and with nothing in force that confines a command.
fn read_bare(ours: &Ours) {
    let root = format!("/proc/{}/root", ours.runtime_pid());
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let path = work::SMALL_FILE.trim_start_matches('/');
    let mut content = [0; work::SMALL_BYTES];
    for _ in 0..BATCH {
        let is_file = rustix::fs::statat(&root, path, AtFlags::empty()).unwrap();
        let file = rustix::fs::openat(&root, path, OFlags::RDONLY, Mode::empty()).unwrap();
        let opened = rustix::fs::fstat(&file).unwrap();
        assert_eq!(is_file.st_ino, opened.st_ino);
        assert_eq!(rustix::io::read(&file, &mut content).unwrap(), work::SMALL_BYTES);
    }
}

pub(crate) async fn tar(bench: &mut Bench) {
    let ours = &bench.ours;
    let tar = small_files_tar(ours.scratch("small.tar"), bench.scale.count(10_000));
    let content = Bytes::from(fs::read(&tar).unwrap());
    // A new directory each time: replacing is other work than making.
    let (into, tar, content) = (&Cell::new(0u32), &tar, &content);
    let next = || {
        into.set(into.get() + 1);
        format!("/workspace/tar-{}", into.get())
    };
    let upload = || {
        let (directory, content) = (next(), content.clone());
        async move {
            let chunks: Vec<Bytes> = content
                .chunks(work::CHUNK)
                .map(|chunk| content.slice_ref(chunk))
                .collect();
            let answer = ours
                .sandbox
                .upload_tar(&directory, futures_util::stream::iter(chunks))
                .await
                .unwrap();
            assert!(answer.failures.is_empty());
        }
    };
    let extract = || {
        let directory = next();
        async move {
            let script = format!("mkdir {directory} && exec tar -x -C {directory}");
            let mut command = ours.beside(&["sh", "-c", &script]);
            assert!(command.stdin(File::open(tar).unwrap()).status().unwrap().success());
        }
    };
    let entrants = [Entrant::new("sandgate", upload), Entrant::new("tar", extract)];
    let costs = take_turns(bench.scale.rounds(9), &entrants).await;
    let entry = Entry::cost(TAR, "Upload", "`tar` writing to the same overlay").at_most(3.0);
    bench.report.add(entry.is(costs.ratio("sandgate", "tar")));
    remove(&bench.ours, "/workspace/tar-*");
}

fn small_files_tar(path: PathBuf, count: usize) -> PathBuf {
    let mut tar = tar::Builder::new(File::create(&path).unwrap());
    for number in 0..count {
        let content = format!("{number:0200}");
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        let name = format!("{:02}/file-{number}", number % 100);
        tar.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    tar.finish().unwrap();
    path
}

pub(crate) async fn grep(bench: &mut Bench) {
    let ours = &bench.ours;
    let files = bench.scale.count(20_000);
    // Lines of text with a word in one of a thousand of them.
    let script = format!(
        "mkdir /workspace/tree && cd /workspace/tree && awk 'BEGIN {{ for (f = 0; f < {files}; f++) {{ d = f % 200; \
         if (f < 200) system(\"mkdir \" d); n = d \"/f\" f \".txt\"; for (l = 0; l < 180; l++) \
         print \"some words of line\", l, \"that nobody looks for here and now\" (l * f % 1000 == 7 ? \" needle\" : \"\") > n; close(n) }} }}'"
    );
    assert!(ours.beside(&["sh", "-c", &script]).status().unwrap().success());
    let threads = std::thread::available_parallelism().unwrap().to_string();
    let threads = &threads;
    let rg = || async move {
        let rg = [
            "rg",
            "-j",
            threads,
            "--no-config",
            "-uuu",
            "-n",
            "needle",
            "/workspace/tree",
        ];
        let status = ours.beside(&rg).stdout(Stdio::null()).status().unwrap();
        assert!(status.success());
    };
    let search = || async {
        let grep = v1::GrepOp {
            path: "/workspace/tree".into(),
            pattern: "needle".into(),
            max_total: 100_000,
            ..Default::default()
        };
        let request = v1::FileOpsRequest {
            sandbox: ours.sandbox.name().into(),
            ops: vec![v1::FileOp {
                op: Some(v1::file_op::Op::Grep(grep)),
            }],
            ..Default::default()
        };
        let answer = ours.client.raw().file_ops(request).await.unwrap().into_inner();
        let found = answer.results.first().and_then(|first| first.result.as_ref());
        assert!(matches!(found, Some(v1::file_op_result::Result::Grep(found)) if !found.files.is_empty()));
    };
    let entrants = [Entrant::new("sandgate", search), Entrant::new("rg", rg)];
    let costs = take_turns(bench.scale.rounds(15), &entrants).await;
    let entry = Entry::cost(
        GREP,
        "FileOps, grep",
        "`rg` in the same mount namespace, as many threads",
    )
    .at_most(1.1);
    bench.report.add(entry.is(costs.ratio("sandgate", "rg")));
    remove(&bench.ours, "/workspace/tree");
}

fn remove(ours: &Ours, what: &str) {
    assert!(
        ours.beside(&["sh", "-c", &format!("rm -rf {what}")])
            .status()
            .unwrap()
            .success()
    );
}
