//! The client of the Kubernetes API for every program of this project, its watches ([`watch`]), its
//! events for people ([`events`]) and lists by pages ([`pages`]).
//!
//! `kube::Client::try_from` leaves Nagle's algorithm on. The kernel then delays the second segment
//! of a request until the API server has acknowledged the first, which takes 40 ms on a fresh
//! connection. [`connect`] builds the same layers over sockets with `TCP_NODELAY`. `cargo xtask
//! tidy` refuses other ways to make a client outside tests.

#![forbid(unsafe_code)]

pub mod events;
pub mod pages;
pub mod watch;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::{Builder, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::{ClientBuilder, ConfigExt as _, retry::RetryPolicy};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder, retry::RetryLayer};

/// A client from the kubeconfig of the environment, or from the service account of the pod.
///
/// # Errors
/// Neither exists, or their content cannot be used.
pub async fn infer() -> kube::Result<Client> {
    let config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    connect(config)
}

/// A client from `config`. It does not connect before the first request.
///
/// # Errors
/// The configuration's certificates, credentials or proxy cannot be used.
pub fn connect(config: Config) -> kube::Result<Client> {
    // Without it the library panics where two providers are compiled in. A second call, also by a
    // program that chose another one, changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // `kube` is built without proxies; its own error is less clear.
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let mut timed = TimeoutConnector::new(tls);
    timed.set_connect_timeout(config.connect_timeout);
    timed.set_read_timeout(config.read_timeout);
    timed.set_write_timeout(config.write_timeout);
    timed.set_reset_reader_on_write(config.reset_reader_on_write);
    let retry = config
        .default_retry
        .then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retry)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Builder::new(TokioExecutor::new()).build(timed));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

#[cfg(test)]
mod tests;
