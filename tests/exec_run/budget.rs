//! What a model gets to see of an output.

use super::*;

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The ends are ends of the text, within their budgets, and what is between is counted.
fn check_cut(output: &BudgetedOutput, text: &[u8], head: usize, tail: usize) {
    assert!(output.head.len() <= head && output.tail.len() <= tail);
    assert!(text.starts_with(&output.head) && text.ends_with(&output.tail));
    let between = &text[output.head.len()..text.len() - output.tail.len()];
    assert_eq!(output.omitted_bytes, between.len() as u64);
    assert_eq!(output.omitted_lines, newlines(between));
    assert_eq!(output.total_bytes, text.len() as u64);
}

async fn budgeted(client: &mut Client, spec: ExecSpec, head: u64, tail: u64) -> RunResponse {
    let budget = Some(OutputBudget {
        head_bytes: head,
        tail_bytes: tail,
    });
    run_with(
        client,
        RunRequest {
            budget,
            ..run_request(&new_id("budget"), spec)
        },
    )
    .await
}

#[tokio::test]
async fn a_budget_cuts_at_lines() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let text: String = (1..=50_000).map(|n| format!("{n}\n")).collect();
    let spec = shell("seq 1 50000; seq 1 50000 >&2");
    for (head, tail) in [
        (1000, 0),
        (0, 1000),
        (1000, 2000),
        (6, 7),
        (1, 1),
        (MIB / 2, 1000),
        (100_000, 100_000),
    ] {
        let answer = budgeted(&mut client, spec.clone(), head, tail).await;
        for output in [answer.stdout.unwrap(), answer.stderr.unwrap()] {
            let (head, tail) = (head as usize, tail as usize);
            check_cut(&output, text.as_bytes(), head, tail);
            if text.len() <= head + tail {
                assert_eq!((output.head.len(), output.omitted_bytes), (text.len(), 0));
                continue;
            }
            // No line is longer than 6 bytes, so a longer budget has a line end in any half of it.
            if head > 12 {
                assert!(
                    output.head.ends_with(b"\n") && output.head.len() + 6 > head,
                    "{}",
                    output.head.len()
                );
            }
            if tail > 12 {
                assert!(output.tail.len() + 6 > tail);
                assert!(text.as_bytes()[..text.len() - output.tail.len()].ends_with(b"\n"));
            }
        }
    }
}

#[tokio::test]
async fn a_budget_cuts_between_characters() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let text = "€".repeat(10_000);
    fs::write(runtime.workspace().join("text"), &text).unwrap();
    for budget in 100..104 {
        let answer = budgeted(&mut client, shell("cat text"), budget, budget).await;
        let output = answer.stdout.unwrap();
        check_cut(&output, text.as_bytes(), budget as usize, budget as usize);
        for end in [output.head, output.tail] {
            assert_eq!(end.len() as u64, budget / 3 * 3);
            std::str::from_utf8(&end).unwrap();
        }
    }
    // No text at all is cut anywhere.
    let bytes = vec![0x80; 10_000];
    fs::write(runtime.workspace().join("text"), &bytes).unwrap();
    let output = budgeted(&mut client, shell("cat text"), 100, 100).await.stdout.unwrap();
    assert_eq!(
        (output.head.len(), output.tail.len(), output.omitted_bytes),
        (100, 100, 9800)
    );
}

#[tokio::test]
async fn the_default_budget_is_32_kib_of_each_end() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let answer = run(
        &mut client,
        shell("head -c 65536 /dev/zero; head -c 65537 /dev/zero >&2"),
    )
    .await;
    let (out, err) = (answer.stdout.unwrap(), answer.stderr.unwrap());
    assert_eq!((out.head.len(), out.tail.len(), out.omitted_bytes), (65_536, 0, 0));
    assert_eq!((err.head.len(), err.tail.len(), err.omitted_bytes), (32_768, 32_768, 1));
    let merged = ExecSpec {
        stderr: StderrMode::Merged.into(),
        ..shell("echo a; echo b >&2; echo c")
    };
    let answer = run(&mut client, merged).await;
    assert_eq!(&answer.stdout.unwrap().head[..], b"a\nb\nc\n");
    assert_eq!(answer.stderr.unwrap(), BudgetedOutput::default());
}

#[tokio::test]
async fn the_start_is_shown_after_retention_dropped_it() {
    for memory in ["65536", "67108864"] {
        let runtime = Runtime::with_args(&["--memory-bytes", memory]).await;
        let mut client = runtime.connect().await;
        let text: String = (1..=1_000_000).map(|n| format!("{n}\n")).collect();
        let spec = ExecSpec {
            retain_bytes: 256 << 10,
            ..shell("seq 1 1000000")
        };
        for (head, tail) in [(100_000, 100_000), (MIB / 2, 1000), (0, 100_000), (100_000, 0)] {
            let answer = budgeted(&mut client, spec.clone(), head, tail).await;
            let oldest = answer.exec.unwrap().oldest.unwrap();
            assert!(oldest.stdout > MIB, "{oldest:?}");
            let output = answer.stdout.unwrap();
            check_cut(&output, text.as_bytes(), head as usize, tail as usize);
            assert!(output.head.len() as u64 + 8 > head && output.tail.len() as u64 + 8 > tail);
        }
        // More of the end than is kept: what is kept.
        let output = budgeted(&mut client, spec.clone(), 1000, MIB - 1000)
            .await
            .stdout
            .unwrap();
        check_cut(&output, text.as_bytes(), 1000, MIB as usize);
        assert!(output.tail.len() > 100_000);
    }
}

#[tokio::test]
async fn budgets_that_no_answer_holds_are_refused() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    for (head_bytes, tail_bytes) in [(MIB, 1), (0, MIB + 1), (u64::MAX, u64::MAX)] {
        let budget = Some(OutputBudget { head_bytes, tail_bytes });
        let request = RunRequest {
            budget,
            ..run_request(&new_id("big"), shell("true"))
        };
        assert_eq!(
            reason(&client.run(request).await.unwrap_err()),
            ErrorReason::InvalidArgument
        );
    }
    let spec = ExecSpec {
        stdin: StdinMode::Open.into(),
        ..shell("cat")
    };
    let refused = client.run(run_request("stdin", spec)).await.unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
    // The largest that is allowed, of both streams, fits in one answer.
    let spec = shell("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2");
    let answer = budgeted(&mut client, spec, MIB / 2, MIB / 2).await;
    for output in [answer.stdout.unwrap(), answer.stderr.unwrap()] {
        assert_eq!((output.head.len() + output.tail.len()) as u64, MIB);
    }
}
