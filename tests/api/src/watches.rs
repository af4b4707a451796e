//! Watches, which a test may cut, keep silent, and have tell what no API server would.

use axum::body::BodyDataStream;
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::api::{Fault, Order, TestApi};
use crate::response::{failure, lines};

/// A watch that runs.
struct Running {
    api: TestApi,
    line: String,
    events: BodyDataStream,
    orders: broadcast::Receiver<Order>,
    has_ended: bool,
}

impl TestApi {
    /// Ends every watch, as a server that goes away does.
    pub fn hang_up(&self) {
        let _unheard = self.inner.watches.send(Order::HangUp);
    }

    /// Ends every watch with 410. What they have not told yet, they do not tell.
    pub fn expire_watches(&self) {
        let _unheard = self.inner.watches.send(Order::Expire);
    }

    /// Has watches whose line begins with `starts` tell of an object in a state that it had.
    pub fn tell(&self, starts: &str, object: &Value) {
        let event = json!({"type": "MODIFIED", "object": object});
        let order = Order::Tell(starts.to_owned(), event);
        let _unheard = self.inner.watches.send(order);
    }

    /// Refuses every call with 503 and ends every watch, until it is up again.
    pub fn set_down(&self, is_down: bool) {
        if is_down {
            self.always("", Fault::Refuse(503));
            self.hang_up();
        } else {
            self.take_back("");
        }
    }

    /// The response of a watch, with what the test orders in it.
    pub(crate) fn watched(
        &self,
        line: &str,
        response: Response,
        orders: broadcast::Receiver<Order>,
    ) -> Response {
        let (head, body) = response.into_parts();
        let running = Running {
            api: self.clone(),
            line: line.to_owned(),
            events: body.into_data_stream(),
            orders,
            has_ended: false,
        };
        let events = futures::stream::unfold(running, |mut running| async move {
            let next = running.next().await?;
            Some((next, running))
        });
        Response::from_parts(head, lines(events))
    }
}

impl Running {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.has_ended {
            tokio::select! {
                biased;
                order = self.orders.recv() => match order {
                    Ok(Order::Tell(starts, event)) if self.line.starts_with(&starts) => {
                        return Some(format!("{event}\n").into());
                    }
                    Ok(Order::Tell(..)) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Ok(Order::Expire) => {
                        self.has_ended = true;
                        let why = failure(410, "too old resource version");
                        let event = json!({"type": "ERROR", "object": why});
                        return Some(format!("{event}\n").into());
                    }
                    Ok(Order::HangUp) | Err(broadcast::error::RecvError::Closed) => return None,
                },
                events = self.events.next() => {
                    let events = events?.ok()?;
                    if !self.api.is_muted(&self.line) {
                        return Some(events);
                    }
                }
            }
        }
        None
    }
}
