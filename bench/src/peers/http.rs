//! HTTP/1.1 on one connection that stays.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, client::conn::http1::SendRequest, header};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::Mutex};

pub(super) struct Http(Mutex<SendRequest<Full<Bytes>>>);

// === impl Http ===

impl Http {
    pub(super) async fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self(Mutex::new(sender))
    }

    /// Reads all of what is there; answers how much that was.
    pub(super) async fn get(&self, path: &str) -> usize {
        let request = Request::get(path).header(header::HOST, "peer").body(Full::default());
        let mut seen = 0;
        let mut answer = self.send(request.unwrap()).await;
        while let Some(frame) = answer.frame().await {
            seen += frame.unwrap().data_ref().map_or(0, Bytes::len);
        }
        seen
    }

    pub(super) async fn put(&self, path: &str, body: Bytes) {
        let request = Request::put(path).header(header::HOST, "peer").body(Full::new(body));
        self.send(request.unwrap()).await.collect().await.unwrap();
    }

    pub(super) async fn post(&self, path: &str, content_type: &str, body: Bytes) -> Bytes {
        let request = Request::post(path)
            .header(header::HOST, "peer")
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body));
        let answer = self.send(request.unwrap()).await;
        answer.collect().await.unwrap().to_bytes()
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> hyper::body::Incoming {
        let mut sender = self.0.lock().await;
        sender.ready().await.unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
        answer.into_body()
    }
}
