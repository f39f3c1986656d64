//! What a provider itself says to what runs inside a sandbox.

use std::time::Duration;

use sandgate_proto::runtime::v1::{
    ConfigureRequest, ConfiguredEnv, EnvVar, HelloRequest, HelloResponse, ListExecsRequest, StopRequest,
};
use tokio::time;
use tonic::{Code, Status};

use crate::{
    limits::{duration, timestamp},
    link::Link,
};

/// The newest protocol generation that we speak.
const GENERATION: u32 = 1;
/// How long a runtime may take until it answers.
const FIRST_ANSWER: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(5);
/// How long any other answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Counting is for a person to read: nobody waits long for it.
const COUNT: Duration = Duration::from_millis(500);
const PAGE: u32 = 1000;
/// A runtime that has a deadline keeps one: this far away is never.
const NEVER_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

/// Gives a runtime its environment, and asks who it is. Tries again while nothing answers yet.
///
/// # Errors
/// When it still does not, or refuses.
pub async fn greet(link: &Link, env: &[EnvVar]) -> Result<HelloResponse, Status> {
    let late = |_| Status::deadline_exceeded("what runs inside does not answer");
    let greeted = async {
        loop {
            match greet_once(link, env).await {
                Err(status) if status.code() == Code::Unavailable => time::sleep(AGAIN).await,
                done => return done,
            }
        }
    };
    time::timeout(FIRST_ANSWER, greeted).await.map_err(late)?
}

async fn greet_once(link: &Link, env: &[EnvVar]) -> Result<HelloResponse, Status> {
    let configure = ConfigureRequest {
        env: Some(ConfiguredEnv { vars: env.to_vec() }),
        ..ConfigureRequest::default()
    };
    let (mut one, mut other) = (link.client(), link.client());
    let hello = HelloRequest { generation: GENERATION };
    let (_, hello) = tokio::try_join!(one.configure(configure), other.hello(hello))?;
    Ok(hello.into_inner())
}

/// Asks a runtime who it is.
///
/// # Errors
/// When it can't be reached, or refuses.
pub async fn hello(link: &Link) -> Result<HelloResponse, Status> {
    let mut client = link.client();
    let asked = client.hello(HelloRequest { generation: GENERATION });
    Ok(answer(asked).await?.into_inner())
}

/// Tells a runtime of that incarnation its environment, and its limits in milliseconds.
///
/// # Errors
/// When it can't be reached, or refuses.
pub async fn configure(
    link: &Link,
    incarnation: &str,
    env: Vec<EnvVar>,
    deadline_ms: Option<u64>,
    idle_ms: Option<u64>,
    now_ms: u64,
) -> Result<(), Status> {
    let request = ConfigureRequest {
        expected_incarnation: incarnation.to_owned(),
        env: Some(ConfiguredEnv { vars: env }),
        ..limits(deadline_ms, idle_ms, now_ms)
    };
    let mut client = link.client();
    answer(client.configure(request)).await.map(drop)
}

/// Tells a runtime its deadline and idle limit, in milliseconds.
///
/// # Errors
/// When it can't be reached, or refuses.
pub async fn set_limits(
    link: &Link,
    deadline_ms: Option<u64>,
    idle_ms: Option<u64>,
    now_ms: u64,
) -> Result<(), Status> {
    let mut client = link.client();
    let told = client.configure(limits(deadline_ms, idle_ms, now_ms));
    answer(told).await.map(drop)
}

fn limits(deadline_ms: Option<u64>, idle_ms: Option<u64>, now_ms: u64) -> ConfigureRequest {
    ConfigureRequest {
        deadline: Some(timestamp(deadline_ms.unwrap_or(now_ms + NEVER_MS))),
        idle_limit: Some(duration(Duration::from_millis(idle_ms.unwrap_or(0)))),
        ..ConfigureRequest::default()
    }
}

/// Tells a runtime to end everything. `grace` of `None`: at once.
///
/// # Errors
/// When it can't be reached, or refuses.
pub async fn stop(link: &Link, grace: Option<Duration>) -> Result<(), Status> {
    let request = StopRequest {
        expected_incarnation: String::new(),
        grace: grace.map(duration),
    };
    let mut client = link.client();
    answer(client.stop(request)).await.map(drop)
}

/// How many execs have a process alive, as far as that can be had quickly.
pub async fn alive_execs(link: &Link) -> u32 {
    let count = async {
        let mut client = link.client();
        let mut request = ListExecsRequest {
            page_size: PAGE,
            page_token: String::new(),
            only_alive: true,
        };
        let mut alive = 0;
        while let Ok(page) = client.list_execs(request.clone()).await {
            let page = page.into_inner();
            alive += u32::try_from(page.execs.len()).unwrap_or(0);
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        alive
    };
    time::timeout(COUNT, count).await.unwrap_or(0)
}

async fn answer<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded("what runs inside does not answer");
    time::timeout(ANSWER, call).await.map_err(late)?
}
