//! The shipped API server in the process of a test, with a layer before it that makes faults.
//!
//! What a program under test asks is answered by the shipped code, from a store in memory. The test
//! itself reads and writes objects past admission ([`TestApi::put`], [`TestApi::edit`],
//! [`TestApi::take`]), so it can put there what an older version let in. It orders faults by the
//! beginning of a call's line ([`TestApi::order`]), cuts watches, and reads the calls so far.

#![forbid(unsafe_code)]

mod api;
mod call;
mod calls;
mod faults;
mod layer;
mod objects;
mod response;
mod watches;

use std::sync::{Arc, Mutex};

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};

pub use api::{Fault, TestApi};
pub use call::Call;
pub use objects::define;

use api::{Inner, ORDERS};

impl TestApi {
    /// Starts one on a free port of the loopback address.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        Self::serve(listener.expect("a port is free"))
    }

    /// Starts one on a socket that listens already.
    #[must_use]
    pub fn serve(listener: TcpListener) -> Self {
        let inner = Arc::new(Inner {
            address: listener.local_addr().expect("the socket is bound"),
            memory: apiserver::testing::start().expect("the definitions are sound"),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            called: watch::Sender::new(0),
            watches: broadcast::Sender::new(ORDERS),
        });
        let api = Self { inner };
        let router = Router::new().fallback(layer::serve).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        api
    }
}
