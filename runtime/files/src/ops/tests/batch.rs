//! Order, errors and the size of an answer.

use prost::Message as _;
use sandgate_proto::runtime::v1::{ListOp, file_op_not_run::Why};

use super::*;

fn why(result: &FileOpResult) -> Option<Why> {
    match &result.result {
        Some(Outcome::NotRun(skipped)) => Some(skipped.why()),
        _ => None,
    }
}

fn ops(ops: Vec<Op>) -> Vec<FileOp> {
    ops.into_iter().map(|op| FileOp { op: Some(op) }).collect()
}

#[test]
fn operations_run_in_order_and_past_errors() {
    let sandbox = Sandbox::new();
    let batch = || {
        ops(vec![
            Op::Write(write("/a", "1")),
            read("/a"),
            read("/no"),
            Op::Write(write("/b", "2")),
        ])
    };
    let results = run_batch(&sandbox.view, batch(), false, BUDGET, &sandbox.shared);
    assert!(matches!(results[0].result, Some(Outcome::Info(_))));
    let Some(Outcome::Read(read)) = &results[1].result else {
        panic!()
    };
    assert_eq!(read.content, "1");
    assert!(matches!(results[2].result, Some(Outcome::Error(_))));
    assert_eq!(sandbox.content("b"), "2");

    fs::remove_file(sandbox.at("b")).unwrap();
    let results = run_batch(&sandbox.view, batch(), true, BUDGET, &sandbox.shared);
    assert_eq!(
        results.iter().map(why).collect::<Vec<_>>(),
        [None, None, None, Some(Why::EarlierError)]
    );
    assert!(!sandbox.at("b").exists());
    let empty = vec![FileOp::default()];
    let results = run_batch(&sandbox.view, empty, true, BUDGET, &sandbox.shared);
    let Some(Outcome::Error(error)) = &results[0].result else {
        panic!()
    };
    assert_eq!(error.reason(), ErrorReason::InvalidArgument);
}

#[test]
fn answers_stay_within_the_budget() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.at("large"), vec![b'x'; 1 << 20]).unwrap();
    let mut batch = vec![read("/large"); 5];
    batch.push(Op::Write(write("/late", "x")));
    let results = run_batch(&sandbox.view, ops(batch), true, BUDGET, &sandbox.shared);
    let skipped: Vec<_> = results.iter().map(why).collect();
    let full = Some(Why::AnswerFull);
    assert_eq!(skipped, [None, None, full, full, full, full]);
    assert!(!sandbox.at("late").exists());
    assert!(results.iter().map(|result| result.encoded_len() + 8).sum::<usize>() <= BUDGET);
}

#[test]
fn lists_end_where_the_room_does() {
    let sandbox = Sandbox::new();
    for number in 0..400 {
        fs::write(sandbox.at(format!("{number:03}-{}", "n".repeat(200))), "").unwrap();
    }
    let budget = 64 << 10;
    let (mut seen, mut page_token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let list = Op::List(ListOp {
            path: "/".into(),
            page_token,
            ..ListOp::default()
        });
        let results = run_batch(&sandbox.view, ops(vec![list]), false, budget, &sandbox.shared);
        assert!(results[0].encoded_len() <= budget);
        let Some(Outcome::List(list)) = &results[0].result else {
            panic!("{results:?}")
        };
        seen.extend(list.entries.iter().map(|entry| entry.path.clone()));
        page_token = list.next_page_token.clone();
        pages += 1;
        if page_token.is_empty() {
            break;
        }
    }
    assert!(pages > 1);
    assert_eq!(seen.len(), 400);
    assert!(seen.is_sorted());
}
