//! The ways to a sandbox: does the router answer, and do pods at their own addresses?

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::{Finding, Verdict};
use tokio::time::timeout;

use super::{PATIENCE, Say, chain, within};
use crate::{
    api::POD_LABEL,
    dial::{Dial as _, HttpWay, InCluster, Routed, Router, Target},
    driver::Driver,
    provider,
    settings::Settings,
};

/// As long as mode auto waits.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);
/// Pods to try.
const TRIED: usize = 8;

/// What a pod does when it is called at its own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    Answers,
    /// Nothing listens there, as in pods of other drivers.
    Refuses,
    /// A policy drops what is not let in.
    Silent,
}

/// Looks at each way that is configured.
pub(super) async fn check(client: &Client, settings: &Settings, say: &mut Say<'_>) {
    let modes = match provider::modes(settings, client) {
        Ok(modes) => modes,
        Err(error) => {
            say(Finding::problem("connection", error.to_string(), "correct the setting"));
            return;
        }
    };
    if let Some(gateway) = &modes.gateway {
        let advice = "look at the Gateway's status, its route to the sandbox router, and policies in between";
        say(router("gateway", Router::Gateway(Arc::clone(gateway)), advice).await);
    }
    if let Some(endpoint) = &modes.direct {
        let advice = "look at kubernetes.direct.url, at the sandbox router behind it, and at policies in between";
        say(router("direct", Router::Direct(Arc::clone(endpoint)), advice).await);
    }
    pods(client, settings, say).await;
}

async fn router(what: &str, router: Router, advice: &str) -> Finding {
    let anybody = Target {
        namespace: "default".to_owned(),
        sandbox: "doctor".to_owned(),
        pod: "doctor".to_owned(),
        addresses: Vec::new(),
    };
    let asked = timeout(PATIENCE, ask_router(Routed::new(router, anybody))).await;
    match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(StatusCode::OK) => Finding::ok(what, "the router behind it answers"),
        Ok(status) => {
            let detail = format!("it answers, but /healthz is {status}");
            Finding::warning(what, detail, "does it lead to the sandbox router, and by that path?")
        }
        Err(error) => Finding::problem(what, chain(&error), advice),
    }
}

/// What the router says of its own health.
async fn ask_router(way: Routed) -> io::Result<StatusCode> {
    let HttpWay {
        stream,
        authority,
        headers,
        path_prefix,
    } = way.http(Driver::Runtime.port()).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = format!("{path_prefix}/healthz").parse().map_err(io::Error::other)?;
    // Without those for the router, which would pass it on to a sandbox.
    let own = headers
        .into_iter()
        .filter_map(|(name, value)| Some((name?, value)))
        .filter(|(name, _)| !name.as_str().starts_with("x-sandbox-"));
    request.headers_mut().extend(own);
    let host = HeaderValue::from_str(authority.as_str()).map_err(io::Error::other)?;
    request.headers_mut().insert(header::HOST, host);
    // It ends when the sender is dropped.
    tokio::spawn(connection);
    let answer = sender.send_request(request).await;
    Ok(answer.map_err(io::Error::other)?.status())
}

/// Whether policies let us reach sandboxes that are there now.
async fn pods(client: &Client, settings: &Settings, say: &mut Say<'_>) {
    const WHAT: &str = "pods by their addresses";
    if !provider::in_cluster(settings) {
        let detail = "not tried: the server does not run in the cluster";
        say(match settings.connection {
            ConnectionMode::InCluster => Finding::problem(
                WHAT,
                detail,
                "choose another kubernetes.connection, or set kubernetes.in_cluster",
            ),
            _ => Finding::ok(WHAT, detail),
        });
        return;
    }
    for namespace in &settings.namespaces {
        let what = format!("{WHAT} in {namespace}");
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pods = match within(api.list(&ListParams::default().labels(POD_LABEL))).await {
            Ok(pods) => pods,
            Err(error) => {
                say(Finding::problem(
                    what,
                    error,
                    "the lines about rights say what is missing",
                ));
                continue;
            }
        };
        let ready: Vec<(String, Vec<IpAddr>)> = pods.into_iter().filter_map(ready).take(TRIED).collect();
        let tried = join_all(ready.iter().map(|(_, addresses)| reach(addresses))).await;
        let names = ready.iter().map(|(name, _)| name.as_str());
        say(judge(&what, &names.zip(tried).collect::<Vec<_>>(), settings));
    }
}

/// Its name and addresses, if it is ready.
fn ready(pod: Pod) -> Option<(String, Vec<IpAddr>)> {
    let status = pod.status?;
    let conditions = status.conditions.unwrap_or_default();
    let is_ready = conditions
        .iter()
        .any(|one| one.type_ == "Ready" && one.status == "True");
    let addresses = status.pod_ips.unwrap_or_default();
    let addresses: Vec<IpAddr> = addresses.iter().filter_map(|ip| ip.ip.parse().ok()).collect();
    (is_ready && !addresses.is_empty()).then_some((pod.metadata.name?, addresses))
}

async fn reach(addresses: &[IpAddr]) -> Reached {
    let way = InCluster::new(addresses.to_vec());
    match way.connect(Driver::Runtime.port(), ANSWER_WITHIN).await {
        Ok(_) => Reached::Answers,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Reached::Refuses,
        Err(_) => Reached::Silent,
    }
}

fn judge(what: &str, tried: &[(&str, Reached)], settings: &Settings) -> Finding {
    let port = Driver::Runtime.port();
    let that = |wanted: Reached| tried.iter().filter(move |(_, reached)| *reached == wanted);
    let hidden: Vec<&str> = that(Reached::Silent).map(|(name, _)| *name).collect();
    if tried.is_empty() {
        let advice = "a warm pool, or a sandbox, shows whether a NetworkPolicy lets the server in";
        return Finding::warning(what, "no sandbox is ready, so none was tried", advice);
    }
    if hidden.is_empty() {
        let (answer, refuse) = (that(Reached::Answers).count(), that(Reached::Refuses).count());
        let detail = match refuse {
            0 => format!("{answer} answer on port {port}"),
            _ => format!("{answer} answer on port {port}; {refuse} refuse, as pods do in which nothing listens there"),
        };
        return Finding::ok(what, detail);
    }
    let verdict = match settings.connection {
        ConnectionMode::InCluster => Verdict::Problem,
        _ => Verdict::Warning,
    };
    let instead = match (settings.connection, &settings.gateway) {
        (ConnectionMode::InCluster, _) => "sandboxes can't be reached",
        (_, Some(_)) => "mode auto goes through the Gateway",
        (_, None) => "mode auto goes through the API server, by tunnel",
    };
    let detail = format!(
        "{} of {} are silent on port {port} for {ANSWER_WITHIN:?} ({}), as behind a NetworkPolicy: {instead}",
        hidden.len(),
        tried.len(),
        hidden.join(", ")
    );
    let advice = format!("add a NetworkPolicy that lets the server's pods reach port {port} of sandboxes");
    Finding::new(verdict, what, detail, advice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::testing::settings;

    #[test]
    fn what_a_silent_pod_means_is_told() {
        let mut settings = settings();
        use Reached::{Answers, Refuses, Silent};
        let judge = |settings: &Settings, tried: &[(&str, Reached)]| judge("pods", tried, settings);
        assert_eq!(judge(&settings, &[]).verdict, Verdict::Warning);
        assert_eq!(judge(&settings, &[("a", Answers), ("b", Refuses)]).verdict, Verdict::Ok);
        let one = judge(&settings, &[("a", Answers), ("b", Silent)]);
        assert_eq!(one.verdict, Verdict::Warning);
        assert!(
            one.detail.starts_with("1 of 2 are silent") && one.detail.contains("(b)"),
            "{one}"
        );
        assert!(one.detail.ends_with("by tunnel"), "{one}");
        settings.connection = ConnectionMode::InCluster;
        assert_eq!(judge(&settings, &[("a", Silent)]).verdict, Verdict::Problem);
    }

    #[test]
    fn only_pods_that_are_ready_are_tried() {
        let pod = |ready: &str, ips: serde_json::Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "p"},
                "status": {"conditions": [{"type": "Ready", "status": ready}], "podIPs": ips},
            }))
            .unwrap()
        };
        let both = json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]);
        assert_eq!(ready(pod("True", both.clone())).unwrap().1.len(), 2);
        assert_eq!(ready(pod("False", both)), None);
        assert_eq!(ready(pod("True", json!([]))), None);
    }
}
