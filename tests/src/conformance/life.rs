//! Making, finding, changing, suspending and removing.

use std::{collections::HashMap, time::Duration};

use sandgate::{Command, v1};
use sandgate_proto::v1::ErrorReason;

use super::{World, create, level, new_name, refused, sh};

/// Create finds what an earlier one made, and refuses to take something else for it.
pub async fn create_is_get_or_create(world: &mut impl World) {
    let client = world.client().await;
    let first = create(&client).await;
    let again = client
        .create()
        .name(&first.info.name)
        .label("a", "b")
        .send()
        .await
        .unwrap();
    assert!(!again.created && !again.resumed);
    assert_eq!(
        (&again.info.uid, &again.info.incarnation),
        (&first.info.uid, &first.info.incarnation)
    );
    assert!(again.info.labels.is_empty(), "a repeat changes nothing");
    let other = client.create().name(&first.info.name).template(world.other_template());
    assert_eq!(refused(other.send().await), ErrorReason::SandboxAlreadyExists);
    first.sandbox.delete().await.unwrap();
}

/// A sandbox without a name gets one, and says all that the contract wants of a ready one.
pub async fn a_new_sandbox_tells_everything(world: &mut impl World) {
    let client = world.client().await;
    let made = client
        .create()
        .ttl(Duration::from_secs(600))
        .idle_limit(Duration::from_secs(300))
        .send()
        .await
        .unwrap();
    let info = made.sandbox.get().await.unwrap();
    assert!(!info.uid.is_empty() && !info.incarnation.is_empty() && !info.etag.is_empty());
    assert!(!info.template.is_empty() && !info.provider.is_empty() && !info.driver.is_empty());
    assert!(info.created_at.is_some() && info.connection.is_some());
    let life = info.deadline.unwrap().seconds - info.created_at.unwrap().seconds;
    assert!((599..=601).contains(&life), "{life}");
    assert_eq!(info.idle_limit.unwrap().seconds, 300);
    let start = info.start.unwrap();
    assert!(start.total.is_some() && !start.steps.is_empty());
    let names: Vec<_> = info.capabilities.iter().map(|each| each.name.clone()).collect();
    assert!(
        names.is_sorted() && names.contains(&"exec.resume".to_owned()),
        "{names:?}"
    );
    for mechanism in &info.isolation {
        assert_eq!(mechanism.in_force, mechanism.why_not.is_empty(), "{mechanism:?}");
    }
    assert!(info.usage.unwrap().measured_at.is_some());
    made.sandbox.delete().await.unwrap();
}

/// What can't be is refused with a reason, and leaves nothing.
pub async fn bad_requests_are_refused(world: &mut impl World) {
    let client = world.client().await;
    let before = client.list("").await.unwrap().len();
    for name in ["A", "1a", "a_b", "a-", &"a".repeat(41)] {
        assert_eq!(
            refused(client.create().name(name).send().await),
            ErrorReason::InvalidArgument,
            "{name}"
        );
    }
    let label = client.create().label("kubernetes.io/x", "y").send().await;
    assert_eq!(refused(label), ErrorReason::InvalidArgument);
    let env = client.create().env("A=B", "x").send().await;
    assert_eq!(refused(env), ErrorReason::InvalidArgument);
    let ttl = client.create().ttl(Duration::ZERO).send().await;
    assert_eq!(refused(ttl), ErrorReason::InvalidArgument);
    let template = client.create().template("no-such-template").send().await;
    assert_eq!(refused(template), ErrorReason::TemplateNotFound);
    assert_eq!(refused(client.list("a in b").await), ErrorReason::InvalidArgument);
    let nobody = client.sandbox(new_name());
    assert_eq!(refused(nobody.get().await), ErrorReason::SandboxNotFound);
    assert_eq!(refused(nobody.attach().await), ErrorReason::SandboxNotFound);
    assert_eq!(refused(nobody.suspend(None).await), ErrorReason::SandboxNotFound);
    assert_eq!(refused(nobody.resume().await), ErrorReason::SandboxNotFound);
    assert_eq!(
        refused(nobody.run(Command::shell("true")).send().await),
        ErrorReason::SandboxNotFound
    );
    assert_eq!(client.list("").await.unwrap().len(), before);
}

/// Labels select, pages follow each other.
pub async fn lists_by_label_and_in_pages(world: &mut impl World) {
    let client = world.client().await;
    let mark = new_name();
    let mut made = Vec::new();
    for i in 0..5 {
        let wanted = client
            .create()
            .name(new_name())
            .label("mark", &mark)
            .label("n", (i % 2).to_string());
        made.push(wanted.send().await.unwrap().sandbox);
    }
    assert_eq!(client.list(&format!("mark={mark}")).await.unwrap().len(), 5);
    assert_eq!(client.list(&format!("mark={mark},n!=0")).await.unwrap().len(), 2);
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRequest {
            label_selector: format!("mark in ({mark})"),
            page_size: 2,
            page_token,
        };
        let page = client.raw().list(request).await.unwrap().into_inner();
        assert!(page.sandboxes.len() <= 2);
        seen.extend(page.sandboxes.into_iter().map(|sandbox| sandbox.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert!(seen.is_sorted() && seen.len() == 5, "{seen:?}");
    for sandbox in made {
        sandbox.delete().await.unwrap();
    }
}

/// Update changes what the mask names, and only over what the caller has seen.
pub async fn updates_follow_mask_and_etag(world: &mut impl World) {
    let client = world.client().await;
    let made = create(&client).await;
    let labels = HashMap::from([("a".to_owned(), "1".to_owned())]);
    let updated = made.sandbox.set_labels(labels.clone()).await.unwrap();
    assert_eq!(updated.labels, labels);
    assert_ne!(updated.etag, made.info.etag);
    assert_eq!(updated.deadline, made.info.deadline);
    let settings = v1::SandboxSettings::default();
    let stale = made
        .sandbox
        .update(settings.clone(), &["labels"], &made.info.etag)
        .await;
    assert_eq!(refused(stale), ErrorReason::EtagMismatch);
    let unknown = made.sandbox.update(settings.clone(), &["name"], "").await;
    assert_eq!(refused(unknown), ErrorReason::InvalidArgument);
    let extended = made.sandbox.extend(Duration::from_secs(7_200)).await.unwrap();
    assert!(extended.deadline.unwrap().seconds != made.info.deadline.unwrap().seconds);
    assert_eq!(extended.labels, labels);
    let cleared = made
        .sandbox
        .update(settings, &["labels"], &extended.etag)
        .await
        .unwrap();
    assert!(cleared.labels.is_empty());
    made.sandbox.delete().await.unwrap();
}

/// Suspend ends processes and keeps files; what comes back is another incarnation.
pub async fn suspend_keeps_the_disk_and_ends_processes(world: &mut impl World) {
    let client = world.client().await;
    let made = client
        .create()
        .name(new_name())
        .env("FROM_CREATE", "kept")
        .send()
        .await
        .unwrap();
    let sandbox = &made.sandbox;
    sh(sandbox, "echo kept > file; test \"$FROM_CREATE\" = kept").await;
    sandbox.start(Command::shell("sleep 600").id("sleeper")).await.unwrap();
    let suspended = sandbox.suspend(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(suspended.state(), v1::SandboxState::Suspended);
    assert!(suspended.incarnation.is_empty());
    let end = suspended.last_end.unwrap();
    assert_eq!(
        (end.cause(), &end.incarnation),
        (v1::EndCause::Suspended, &made.info.incarnation)
    );
    sandbox.suspend(None).await.expect("suspended already is no error");
    // Other calls say so, unless they ask for it to be resumed or expect what is gone.
    assert_eq!(
        refused(sandbox.run(Command::shell("true")).send().await),
        ErrorReason::SandboxSuspended
    );
    assert_eq!(
        refused(sandbox.exec_info("sleeper").await),
        ErrorReason::SandboxSuspended
    );
    let expecting = client.sandbox(sandbox.name()).expecting(&made.info.incarnation);
    assert_eq!(
        refused(expecting.run(Command::shell("true")).send().await),
        ErrorReason::SandboxRestarted
    );
    let resumed = sandbox.resume().await.unwrap();
    assert_eq!(resumed.state(), v1::SandboxState::Ready);
    assert_eq!(resumed.uid, made.info.uid);
    assert_ne!(resumed.incarnation, made.info.incarnation);
    assert_eq!(sh(sandbox, "cat file; echo $FROM_CREATE").await, "kept\nkept\n");
    assert_eq!(
        refused(expecting.run(Command::shell("true")).send().await),
        ErrorReason::SandboxRestarted
    );
    let sleeper = sandbox.exec_info("sleeper").await;
    if level(&resumed, "exec.resume") == Some(v1::CapabilityLevel::Full) {
        assert_ne!(sleeper.unwrap().state(), v1::ExecState::Running);
    } else {
        assert_eq!(refused(sleeper), ErrorReason::ExecNotFound);
    }
    sandbox.suspend(Some(Duration::ZERO)).await.unwrap();
    let by_call = client.sandbox(sandbox.name()).auto_resume(true);
    assert_eq!(sh(&by_call, "cat file").await, "kept\n");
    sandbox.suspend(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(sandbox.attach().await.unwrap().state(), v1::SandboxState::Ready);
    sandbox.suspend(Some(Duration::ZERO)).await.unwrap();
    let created = client.create().name(sandbox.name()).send().await.unwrap();
    assert!(created.resumed && !created.created);
    sandbox.delete().await.unwrap();
}

/// Delete ends everything, tells what, may be repeated, and frees the name.
pub async fn delete_frees_the_name(world: &mut impl World) {
    let client = world.client().await;
    let made = create(&client).await;
    sh(&made.sandbox, "echo old > file").await;
    made.sandbox
        .start(Command::shell("sleep 600").id("sleeper"))
        .await
        .unwrap();
    let other = v1::DeleteRequest {
        sandbox: made.info.name.clone(),
        expected_uid: "another".to_owned(),
        grace: None,
    };
    assert!(!client.raw().delete(other).await.unwrap().into_inner().existed);
    let deleted = made.sandbox.delete().await.unwrap();
    assert!(deleted.existed);
    assert_eq!((&deleted.uid, deleted.execs_ended), (&made.info.uid, 1));
    assert!(!made.sandbox.delete().await.unwrap().existed);
    assert_eq!(refused(made.sandbox.get().await), ErrorReason::SandboxNotFound);
    let again = client.create().name(&made.info.name).send().await.unwrap();
    assert!(again.created && again.info.uid != made.info.uid);
    assert_eq!(sh(&again.sandbox, "test ! -e file && echo new").await, "new\n");
    again.sandbox.delete().await.unwrap();
}
