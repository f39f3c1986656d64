//! The whole output as a file in the sandbox.

use super::*;

#[tokio::test]
async fn long_output_is_saved_to_a_file_of_the_user() {
    for user in ["", "nobody"] {
        let runtime = Runtime::with_args(&["--memory-bytes", "65536"]).await;
        let mut client = runtime.connect().await;
        let workspace = runtime.workspace();
        fs::set_permissions(&workspace, fs::Permissions::from_mode(0o777)).unwrap();
        let path = workspace.join("a/b/saved").display().to_string();
        let save = |path: &str, after_bytes| {
            Some(SaveOutput {
                path: path.to_owned(),
                after_bytes,
                ..Default::default()
            })
        };
        let spec = |script: &str, save_output| ExecSpec {
            save_output,
            user: user.into(),
            ..shell(script)
        };

        let small = run(&mut client, spec("printf 12345; printf 67890 >&2", save(&path, 10)))
            .await
            .exec
            .unwrap();
        assert!(small.saved_path.is_empty() && small.save_error.is_empty() && !Path::new(&path).exists());

        let merged = |script: &str, save| ExecSpec {
            stderr: StderrMode::Merged.into(),
            ..spec(script, save)
        };
        let script = "i=0; while [ $i -lt 3000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
        let large = run(&mut client, merged(script, save(&path, 10))).await.exec.unwrap();
        assert_eq!(
            (large.saved_path.as_str(), large.save_error.as_str()),
            (path.as_str(), "")
        );
        let expected: String = (0..3000).map(|i| format!("out {i}\nerr {i}\n")).collect();
        assert!(
            fs::read_to_string(&path).unwrap() == expected,
            "it holds all of the output"
        );
        let uid = if user.is_empty() { 0 } else { NOBODY };
        assert_eq!(fs::metadata(&path).unwrap().uid(), uid);

        // An existing file is replaced; one more byte than the bound is enough.
        let more = run(&mut client, spec("printf 12345; printf 678901 >&2", save(&path, 10)))
            .await
            .exec
            .unwrap();
        assert_eq!(more.saved_path, path);
        let saved = fs::read_to_string(&path).unwrap();
        assert!(saved == "12345678901" || saved == "67890112345", "{saved}");

        // A file that can't be made fails the file and not the command.
        let bad = run(&mut client, spec("echo enough", save("/proc/no/such", 0)))
            .await
            .exec
            .unwrap();
        assert!(!bad.save_error.is_empty(), "{bad:?}");
        assert_eq!(bad.exit.unwrap().status, Some(Status::Code(0)));
    }
}

#[tokio::test]
async fn a_saved_file_is_whole_whatever_is_dropped_from_the_log() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let path = runtime.workspace().join("saved");
    let save_output = Some(SaveOutput {
        path: path.display().to_string(),
        after_bytes: 100,
        ..Default::default()
    });
    for (megabytes, on_full) in [(8, OnFull::DropOldest), (32, OnFull::DropOldest), (32, OnFull::Hold)] {
        let script = format!("head -c {megabytes}000000 /dev/zero");
        let bounds = ExecSpec {
            retain_bytes: 1 << 20,
            on_full: on_full.into(),
            ..shell(script)
        };
        let exec = run(
            &mut client,
            ExecSpec {
                save_output: save_output.clone(),
                ..bounds
            },
        )
        .await
        .exec
        .unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), megabytes * 1_000_000);
        assert_eq!(exec.exit.as_ref().unwrap().status, Some(Status::Code(0)));
        assert!(exec.save_error.is_empty(), "{exec:?}");
    }
    // Something that takes no bytes does not keep the answer waiting.
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let spec = ExecSpec {
        save_output,
        ..shell("seq 1000")
    };
    let exec = run(&mut client, spec).await.exec.unwrap();
    assert_eq!(exec.exit.as_ref().unwrap().status, Some(Status::Code(0)));
    assert!(!exec.save_error.is_empty(), "{exec:?}");
}

#[tokio::test]
async fn a_saved_file_ends_at_its_bound_and_the_command_does_not() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let path = runtime.workspace().join("saved");
    let bounds = |max_bytes| {
        Some(SaveOutput {
            path: path.display().to_string(),
            after_bytes: 10,
            max_bytes,
            ..Default::default()
        })
    };
    let all: String = (1..=300_000).map(|n| format!("{n}\n")).collect();
    let total = all.len() as u64;
    // The bound is below, at and above what there is; and below what makes a file at all.
    for (max_bytes, saved) in [
        (100_001, 100_001),
        (total, total),
        (total + 1, total),
        (0, total),
        (3, 3),
    ] {
        for on_full in [OnFull::DropOldest, OnFull::Hold] {
            let spec = ExecSpec {
                save_output: bounds(max_bytes),
                retain_bytes: 1 << 20,
                on_full: on_full.into(),
                ..shell("seq 300000; exit 7")
            };
            let exec = run(&mut client, spec).await.exec.unwrap();
            assert_eq!(exec.exit.as_ref().unwrap().status, Some(Status::Code(7)));
            assert_eq!(exec.written.unwrap().stdout, total);
            assert_eq!(
                (exec.saved_path.as_str(), exec.saved_bytes),
                (path.to_str().unwrap(), saved)
            );
            assert_eq!(exec.save_error.is_empty(), saved == total, "{exec:?}");
            assert!(fs::read(&path).unwrap() == all.as_bytes()[..usize::try_from(saved).unwrap()]);
            fs::remove_file(&path).unwrap();
        }
    }
    // Of both streams together.
    let spec = ExecSpec {
        save_output: bounds(20),
        ..shell("printf 0123456789abcdef; printf 0123456789abcdef >&2")
    };
    let exec = run(&mut client, spec).await.exec.unwrap();
    assert_eq!((exec.saved_bytes, fs::metadata(&path).unwrap().len()), (20, 20));
    assert!(!exec.save_error.is_empty(), "{exec:?}");
}
