//! One call through the layer.

use apiserver::testing::TOKEN;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tower::ServiceExt as _;

use crate::api::{Fault, TestApi};
use crate::call::Call;
use crate::response::{refusal, respond};

/// Longest body of a call.
const MAX_BODY: usize = 8 << 20;

/// What a test has ordered for a call.
enum Decision {
    Pass,
    Lose,
    Answer(Response),
}

/// Serves a call to its end, also if the caller goes away before that.
pub(crate) async fn serve(State(api): State<TestApi>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_BODY).await;
    let call = Call::new(&head, body.unwrap_or_default());
    let served = tokio::spawn(async move { api.answer(head, &call).await });
    served.await.expect("no panic in the layer")
}

impl TestApi {
    async fn answer(&self, head: Parts, call: &Call) -> Response {
        let number = self.record(call);
        let is_lost = match self.decision(call).await {
            Decision::Pass => false,
            Decision::Lose => true,
            Decision::Answer(response) => return response,
        };
        let response = self.carry_out(head, call, number).await;
        if is_lost {
            return std::future::pending().await;
        }
        response
    }

    async fn decision(&self, call: &Call) -> Decision {
        let mut after = 0;
        loop {
            let mut changed = self.inner.changed.subscribe();
            match self.next_fault(call, &mut after) {
                None | Some(Fault::Mute) => return Decision::Pass,
                Some(Fault::Refuse(code)) => return Decision::Answer(refusal(code)),
                Some(Fault::Swallow) => return std::future::pending().await,
                Some(Fault::Lose) => return Decision::Lose,
                Some(Fault::Hold) => {
                    let _ended = changed.changed().await;
                }
                Some(Fault::Answer(answer)) => {
                    if let Some((code, body)) = answer(self, call) {
                        return Decision::Answer(respond(code, &body));
                    }
                }
            }
        }
    }

    async fn carry_out(&self, mut head: Parts, call: &Call, number: usize) -> Response {
        let bearer = HeaderValue::from_str(&format!("Bearer {TOKEN}"));
        head.headers
            .insert(header::AUTHORIZATION, bearer.expect("is plain text"));
        let orders = self.inner.watches.subscribe();
        let request = Request::from_parts(head, Body::from(call.body.clone()));
        let Ok(response) = self.inner.memory.router.clone().oneshot(request).await;
        self.record_status(number, response.status().as_u16());
        if call.is_watch() {
            return self.watched(&call.line, response, orders);
        }
        if call.is_write() && response.status().is_success() {
            let hook = self.inner.state().hook.clone();
            if let Some(hook) = hook {
                hook(self, call);
            }
            self.inner.mark_changed();
        }
        response
    }
}
