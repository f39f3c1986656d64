//! The execs that there are: no more alive than the limit, all of them listed.

use super::*;

#[tokio::test]
async fn no_more_than_the_limit_are_alive() {
    let runtime = Runtime::with_args(&["--max-alive=1"]).await;
    let mut client = runtime.connect().await;
    let id = new_id("first");
    // Its program ends at once; what it leaves counts.
    client
        .run(run_request(&id, mark(shell("sleep 1000 & true"), &id)))
        .await
        .unwrap();
    until("it is left", || marked(&id).len() == 1).await;
    let second = new_id("second");
    let trace = runtime.workspace().join(&second);
    let refused = client
        .start_exec(start_request(&second, traced(&trace)))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::LimitReached);
    let signal = Some(ExecSignal { signal: 9 });
    client
        .signal_exec(SignalExecRequest {
            exec_id: id,
            signal,
            ..Default::default()
        })
        .await
        .unwrap();
    // The refusal took nothing: the id is free, and runs now.
    while client.start_exec(start_request(&second, traced(&trace))).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    exited(&mut client, &second).await;
    assert_eq!(runs(&trace), 1);
}

#[tokio::test]
async fn execs_are_listed_in_pages() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let mut ids = Vec::new();
    for number in 0..25 {
        let id = format!("page-{number}");
        let script = if number % 5 == 0 { "exec sleep 1000" } else { "true" };
        client.start_exec(start_request(&id, shell(script))).await.unwrap();
        if number % 5 != 0 {
            exited(&mut client, &id).await;
        }
        ids.push(id);
    }
    for (page_size, only_alive) in [(0, false), (7, false), (25, false), (1, false), (2, true)] {
        let mut found = Vec::new();
        let mut request = ListExecsRequest {
            page_size,
            only_alive,
            ..Default::default()
        };
        loop {
            let page = client.list_execs(request.clone()).await.unwrap().into_inner();
            assert!(page_size == 0 || page.execs.len() <= page_size as usize);
            found.extend(page.execs.into_iter().map(|exec| exec.exec_id));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        let wanted = ids
            .iter()
            .enumerate()
            .filter(|(number, _)| !only_alive || number % 5 == 0);
        assert_eq!(found, wanted.map(|(_, id)| id.clone()).collect::<Vec<_>>());
    }
    let too_many = ListExecsRequest {
        page_size: 1_001,
        ..Default::default()
    };
    assert_eq!(
        reason(&client.list_execs(too_many).await.unwrap_err()),
        ErrorReason::InvalidArgument
    );
}
