//! Who gets an answer from `bellows web`.
//!
//! | check | refuses | answer |
//! |---|---|---|
//! | `Host` is the address listened on | a foreign name that was pointed at this machine | 421 |
//! | the link, valid once | a second person with the link | 401 |
//! | cookie, `HttpOnly`, `SameSite=Strict` | everybody who has not used the link | 401 |
//! | `Origin` and `Sec-Fetch-Site` of a `POST` | pages of other sites, and of other ports of this address | 403 |
//! | a form's token ([`super::forms`]) | forms that this server has not made, and old ones | 403 |
//!
//! Link and cookie are random, held as digests, and in no log.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderName, header};
use daemon_kit::bearer::{self, Expected};

/// Headers of every answer. Nothing is loaded from elsewhere, framed elsewhere or kept.
pub(super) const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];
const FETCH_SITE: &str = "sec-fetch-site";

/// Link, cookie and name of one server.
pub(super) struct Guard {
    /// Value of `Host`.
    host: String,
    /// Name of the cookie. Cookies are shared by all ports of an address, so the name has the port.
    cookie: String,
    /// `None` once the link is used.
    link: Mutex<Option<Expected>>,
    session: Mutex<Option<Expected>>,
    /// Whether the person has stopped the refresh of pages.
    is_still: AtomicBool,
}

impl Guard {
    /// A guard of a server at an address, and the token of its link.
    pub(super) fn new(address: SocketAddr) -> (Self, String) {
        let link = bearer::random();
        let guard = Self {
            host: address.to_string(),
            cookie: format!("bellows-{}", address.port()),
            link: Mutex::new(Some(Expected::new(&link))),
            session: Mutex::default(),
            is_still: AtomicBool::default(),
        };
        (guard, link)
    }

    /// Uses the link up and begins the session. Returns the header that sets its cookie, or `None`
    /// if this is not the link or it was used before.
    pub(super) fn enter(&self, link: &str) -> Option<String> {
        let mut expected = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        expected.filter(|expected| expected.is(link.as_bytes()))?;
        *expected = None;
        let value = bearer::random();
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        *session = Some(Expected::new(&value));
        let name = &self.cookie;
        Some(format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict"))
    }

    pub(super) fn has_session(&self, headers: &HeaderMap) -> bool {
        let session = *self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let mut cookies = cookies
            .filter_map(|cookies| cookies.to_str().ok())
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='));
        session.is_some_and(|session| {
            cookies.any(|(name, value)| name == self.cookie && session.is(value.as_bytes()))
        })
    }

    pub(super) fn is_own_host(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(header::HOST).into_iter();
        hosts.next().is_some_and(|host| host == self.host.as_str()) && hosts.next().is_none()
    }

    /// Whether a request was begun by a page of this server. Browsers say so; another client that
    /// does not needs the cookie and a form's token all the same.
    pub(super) fn is_own_page(&self, headers: &HeaderMap) -> bool {
        let is = |name: &str, allowed: &[&str]| {
            let value = headers.get(name);
            value.is_none_or(|value| allowed.iter().any(|allowed| value == allowed))
        };
        let origin = format!("http://{}", self.host);
        is(header::ORIGIN.as_str(), &[&origin]) && is(FETCH_SITE, &["same-origin", "none"])
    }

    pub(super) fn is_still(&self) -> bool {
        self.is_still.load(Ordering::Relaxed)
    }

    pub(super) fn set_still(&self, is_still: bool) {
        self.is_still.store(is_still, Ordering::Relaxed);
    }
}
