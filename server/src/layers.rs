//! What every request goes through before the service sees it. From the outside in:
//!
//! 1. [`request_id`] gives the request an id and a span, and the answer the id;
//! 2. [`host`] turns away whoever calls the server by another's name;
//! 3. [`express`] takes plain calls past what is there for web pages: [`origin`] turns away those that have no business
//!    here, CORS headers let the others read answers, and gRPC-Web becomes gRPC;
//! 4. [`answer`] puts the id in trailers, ends streams when the server stops, and logs how the call ended;
//! 5. [`caller`] makes the request a caller's.

pub(crate) mod answer;
pub(crate) mod caller;
pub(crate) mod express;
pub(crate) mod host;
pub(crate) mod origin;
pub(crate) mod request_id;

mod gate;
mod refuse;

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, CorsLayer};

use crate::config::WebOrigin;

pub(crate) use self::gate::GateLayer;

/// How long browsers may remember that a page may call.
const PREFLIGHT_AGE: Duration = Duration::from_secs(2 * 3600);

/// The headers that let listed pages call and read answers.
pub(crate) fn cors(origins: &[WebOrigin]) -> CorsLayer {
    let origins = origins
        .iter()
        .filter_map(|origin| HeaderValue::from_str(origin.as_str()).ok());
    CorsLayer::new()
        .allow_origin(origins.collect::<Vec<_>>())
        .allow_methods([Method::POST])
        // Metadata has names of its own, and whoever is listed may send what it likes.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("grpc-status"),
            HeaderName::from_static("grpc-message"),
            HeaderName::from_static("grpc-status-details-bin"),
            HeaderName::from_static(request_id::HEADER),
        ])
        .allow_private_network(true)
        .max_age(PREFLIGHT_AGE)
        .vary([header::ORIGIN])
}
