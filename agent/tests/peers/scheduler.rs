//! A permit server that grants what is asked up to a limit, or misbehaves as told.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use protocol::permit::AgentRequest;
use protocol::units::Resources;
use serde_json::json;
use tokio::net::TcpListener;

use super::{Seen, Trace};

/// How the next requests are answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mood {
    /// Grants, each field up to the limit.
    Grants(Resources),
    /// Grants and says that a migration comes.
    Migrates,
    Fails,
    /// Answers 200 with something that is no permit.
    Garbage,
    /// Answers only after longer than the agent waits.
    Late,
    /// Grants more than was asked.
    TooMuch,
    /// Grants less than what is in use.
    TooLittle,
}

#[derive(Clone)]
pub struct Scheduler {
    pub ip: IpAddr,
    pub port: u16,
    mood: Arc<Mutex<Mood>>,
    /// What a caller's `Authorization` has to be.
    pub authorization: Arc<Mutex<Option<String>>>,
    bodies: Arc<Mutex<Vec<String>>>,
    trace: Trace,
}

/// A limit no VM reaches.
pub const PLENTY: Resources = Resources::new(100_000, 1 << 40);

impl Scheduler {
    pub async fn start(trace: Trace, ip: IpAddr) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.expect("binds");
        let port = listener.local_addr().expect("has an address").port();
        let scheduler = Self {
            ip,
            port,
            mood: Arc::new(Mutex::new(Mood::Grants(PLENTY))),
            authorization: Arc::default(),
            bodies: Arc::default(),
            trace,
        };
        let router = Router::new()
            .route("/", post(answer))
            .with_state(scheduler.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        scheduler
    }

    pub fn set(&self, mood: Mood) {
        *self.mood.lock().expect("no test panics here") = mood;
    }

    /// The first request's bytes as text.
    pub fn first_body(&self) -> String {
        self.bodies.lock().expect("no test panics here")[0].clone()
    }
}

async fn answer(State(scheduler): State<Scheduler>, headers: HeaderMap, body: Bytes) -> Response {
    let wanted = scheduler.authorization.lock().expect("free").clone();
    let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    if wanted.is_some_and(|wanted| shown != Some(wanted.as_bytes())) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let text = String::from_utf8(body.to_vec()).expect("is text");
    let request: AgentRequest = serde_json::from_str(&text).expect("is a request");
    request.validate().expect("is a good request");
    scheduler
        .bodies
        .lock()
        .expect("no test panics here")
        .push(text);
    scheduler.trace.push(Seen::Permit(request.clone()));
    let asked = request.resources;
    let mood = *scheduler.mood.lock().expect("no test panics here");
    match mood {
        Mood::Grants(limit) => {
            let held = request.last_permit.unwrap_or(asked);
            let permit = asked.field_min(limit.field_max(held.field_min(asked)));
            axum::Json(json!({ "permit": permit })).into_response()
        }
        Mood::Migrates => axum::Json(json!({"permit": asked, "migrate": {}})).into_response(),
        Mood::Fails => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "request handler panicked",
        )
            .into_response(),
        Mood::Garbage => "a permit, honestly".into_response(),
        Mood::Late => {
            tokio::time::sleep(Duration::from_secs(5)).await;
            axum::Json(json!({ "permit": asked })).into_response()
        }
        Mood::TooLittle => {
            let permit = Resources::new(1, 1);
            axum::Json(json!({ "permit": permit })).into_response()
        }
        Mood::TooMuch => {
            let permit = asked.saturating_mul(2);
            axum::Json(json!({ "permit": permit })).into_response()
        }
    }
}
