//! Token reviews: the API server checks a caller's token by a `TokenReview`.
//!
//! A token must be valid for our audience and belong to one of the configured users. If the API
//! server says on which node the token's pod runs, the caller may request permits for pods of that
//! node only. Kubernetes 1.32 says so for tokens that are bound to a pod.
//!
//! The outcome of a review is cached for a bounded time under the token's digest. Agents send a
//! request every few seconds, and a revoked token must not stay valid for long. The number of
//! reviews in flight is bounded, so that invalid tokens cannot flood the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daemon_kit::clock::Clock;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use protocol::permit::{PermitRefusal, Unproved};
use protocol::time::{Span, Timestamp};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::api::ApiContext;
use super::callers::{ReviewRule, Scope};
use super::metrics::Metrics;

/// How long an accepted token is not reviewed again.
pub const REVIEW_LASTS: Span = Span::from_secs(60);
/// How long a refused token is not reviewed again. Its user may have been created just now.
const REFUSAL_LASTS: Span = Span::from_secs(5);
/// Cached outcomes: four for each of a thousand nodes.
const MAX_KEPT: usize = 4096;
/// Longest token that is reviewed, in bytes. A service account's token has about 1,000.
const MAX_TOKEN: usize = 16 << 10;
/// Reviews in flight at a time.
const MAX_UNDER_WAY: usize = 16;
/// Extra of a user with the node of the token's pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

type Outcome = Result<Scope, PermitRefusal>;

pub(super) struct Reviewer {
    rule: ReviewRule,
    client: Client,
    timeout: Duration,
    clock: Clock,
    metrics: Metrics,
    /// The runtime of API calls. The permit thread makes none.
    call_runtime: Handle,
    cache: Mutex<Cache>,
    review_limit: Arc<Semaphore>,
}

/// Outcomes of reviews, each with its end.
#[derive(Default)]
pub(super) struct Cache {
    by_digest: BTreeMap<[u8; 32], (Timestamp, Outcome)>,
    ends: BTreeSet<(Timestamp, [u8; 32])>,
}

impl Cache {
    fn get(&mut self, now: Timestamp, digest: &[u8; 32]) -> Option<Outcome> {
        while let Some((end, old)) = self.ends.first().copied()
            && end <= now
        {
            self.ends.remove(&(end, old));
            self.by_digest.remove(&old);
        }
        self.by_digest
            .get(digest)
            .map(|(_, outcome)| outcome.clone())
    }

    fn put(&mut self, until: Timestamp, digest: [u8; 32], outcome: Outcome) {
        if let Some((before, _)) = self.by_digest.insert(digest, (until, outcome)) {
            self.ends.remove(&(before, digest));
        }
        self.ends.insert((until, digest));
        // Refused tokens end first, because they are cached for less time.
        if self.by_digest.len() > MAX_KEPT
            && let Some((_, first)) = self.ends.pop_first()
        {
            self.by_digest.remove(&first);
        }
    }
}

impl Reviewer {
    /// A reviewer without known outcomes. Its calls run on the present runtime.
    pub(super) fn new(rule: ReviewRule, context: &ApiContext) -> Self {
        Self {
            rule,
            client: context.client.clone(),
            timeout: context.timeout,
            clock: context.clock,
            metrics: context.metrics.clone(),
            call_runtime: Handle::current(),
            cache: Mutex::default(),
            review_limit: Arc::new(Semaphore::new(MAX_UNDER_WAY)),
        }
    }

    /// The pods that a caller with this token may request permits for.
    pub(super) async fn scope(&self, token: &[u8]) -> Outcome {
        let bad = PermitRefusal::Unauthorized(Unproved::BadToken);
        let token = std::str::from_utf8(token)
            .ok()
            .filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN)
            .ok_or(bad)?;
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.known(&digest) {
            return known;
        }
        let slot = tokio::time::timeout(self.timeout, self.review_limit.acquire());
        let Ok(Ok(_slot)) = slot.await else {
            return Err(PermitRefusal::Unreviewed);
        };
        // Another connection may have sent the token meanwhile.
        if let Some(known) = self.known(&digest) {
            return known;
        }
        let outcome = self.review(token).await;
        let lasts = match &outcome {
            Ok(_) => self.rule.lasts,
            Err(PermitRefusal::Unreviewed) => return outcome,
            Err(_) => REFUSAL_LASTS.min(self.rule.lasts),
        };
        let until = self.clock.now() + lasts;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.put(until, digest, outcome.clone());
        outcome
    }

    fn known(&self, digest: &[u8; 32]) -> Option<Outcome> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(self.clock.now(), digest)
    }

    async fn review(&self, token: &str) -> Outcome {
        let op = ("Create", "TokenReview");
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![self.rule.audience.clone()]),
                token: Some(token.to_owned()),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let call = async move { api.create(&PostParams::default(), &review).await };
        let call = self.call_runtime.spawn(call);
        let (outcome, why) = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(Ok(reviewed))) => {
                self.metrics.k8s_op_done(op);
                let outcome = scope_of(&self.rule, reviewed.status.unwrap_or_default());
                if let Err(refusal) = &outcome {
                    tracing::warn!(%refusal, "a token was refused");
                }
                return outcome;
            }
            Ok(Ok(Err(kube::Error::Api(status)))) => {
                (format!("error: status {}", status.code), status.message)
            }
            Ok(Ok(Err(error))) => ("error: no answer".to_owned(), daemon_kit::chain(&error)),
            Ok(Err(error)) => ("error: no answer".to_owned(), error.to_string()),
            Err(_) => ("error: no answer".to_owned(), "no answer in time".into()),
        };
        self.metrics.k8s_op_failed(op, &outcome);
        tracing::warn!(error = why, "a token could not be reviewed");
        Err(PermitRefusal::Unreviewed)
    }
}

/// What the API server's answer context.
fn scope_of(rule: &ReviewRule, status: TokenReviewStatus) -> Outcome {
    if status.authenticated != Some(true) {
        // The API server reports a token for another audience in the same way, with an error text.
        let audience = status.error.is_some_and(|error| error.contains("audience"));
        return Err(PermitRefusal::Unauthorized(if audience {
            Unproved::WrongAudience
        } else {
            Unproved::BadToken
        }));
    }
    // A reviewer without support for audiences omits them and reviews for its own audience only.
    let audiences = status.audiences.unwrap_or_default();
    if !audiences.contains(&rule.audience) {
        return Err(PermitRefusal::Unauthorized(Unproved::WrongAudience));
    }
    let user = status.user.unwrap_or_default();
    if !rule
        .users
        .contains(user.username.as_deref().unwrap_or_default())
    {
        return Err(PermitRefusal::Forbidden);
    }
    let extra = user.extra.unwrap_or_default();
    Ok(match extra.get(NODE_NAME).map(Vec::as_slice) {
        None => Scope::AnyNode,
        Some([node]) => Scope::Node(node.as_str().into()),
        // Several nodes, or none: no scope that could be enforced.
        Some(_) => return Err(PermitRefusal::Forbidden),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const AGENT: &str = "system:serviceaccount:kube-system:agent";

    fn rule() -> ReviewRule {
        ReviewRule {
            audience: "permits".into(),
            users: [AGENT.to_owned()].into(),
            lasts: REVIEW_LASTS,
        }
    }

    #[test]
    fn only_a_valid_token_of_our_user_and_audience_is_accepted_for_its_node() {
        let unproved = |why| Err(PermitRefusal::Unauthorized(why));
        let user = |extra: Value| json!({"username": AGENT, "extra": extra});
        let good =
            |user: Value| json!({"authenticated": true, "audiences": ["permits"], "user": user});
        for (status, expected) in [
            (json!({}), unproved(Unproved::BadToken)),
            (
                json!({"authenticated": false}),
                unproved(Unproved::BadToken),
            ),
            (
                json!({"authenticated": false, "error": "token audiences [\"x\"] is invalid for the target audiences [\"permits\"]"}),
                unproved(Unproved::WrongAudience),
            ),
            (
                json!({"authenticated": true, "user": user(json!({}))}),
                unproved(Unproved::WrongAudience),
            ),
            (
                json!({"authenticated": true, "audiences": ["api"], "user": user(json!({}))}),
                unproved(Unproved::WrongAudience),
            ),
            (good(json!({})), Err(PermitRefusal::Forbidden)),
            (
                good(json!({"username": "system:serviceaccount:default:agent"})),
                Err(PermitRefusal::Forbidden),
            ),
            (good(json!({"username": AGENT})), Ok(Scope::AnyNode)),
            (good(user(json!({}))), Ok(Scope::AnyNode)),
            (
                good(user(json!({NODE_NAME: ["n1"]}))),
                Ok(Scope::Node("n1".into())),
            ),
            (
                good(user(json!({NODE_NAME: ["n1", "n2"]}))),
                Err(PermitRefusal::Forbidden),
            ),
            (
                good(user(json!({NODE_NAME: []}))),
                Err(PermitRefusal::Forbidden),
            ),
        ] {
            let read = serde_json::from_value(status.clone()).expect("a status");
            assert_eq!(scope_of(&rule(), read), expected, "{status}");
        }
    }

    #[test]
    fn cached_reviews_are_bounded_in_time_and_number() {
        let mut cache = Cache::default();
        let digest = |n: usize| -> [u8; 32] { Sha256::digest(n.to_string()).into() };
        let (good, bad) = (Ok(Scope::AnyNode), Err(PermitRefusal::Forbidden));
        cache.put(Timestamp(100), digest(0), good.clone());
        assert_eq!(cache.get(Timestamp(99), &digest(0)), Some(good.clone()));
        for n in 1..2 * MAX_KEPT {
            cache.put(Timestamp(50), digest(n), bad.clone());
        }
        assert_eq!(cache.by_digest.len(), MAX_KEPT);
        assert_eq!(cache.ends.len(), MAX_KEPT);
        assert_eq!(cache.get(Timestamp(49), &digest(0)), Some(good));
        assert_eq!(cache.get(Timestamp(100), &digest(0)), None);
        assert!(cache.by_digest.is_empty() && cache.ends.is_empty());
        // The same one again is believed until the later time.
        cache.put(Timestamp(150), digest(1), bad.clone());
        cache.put(Timestamp(200), digest(1), bad.clone());
        assert_eq!(cache.get(Timestamp(199), &digest(1)), Some(bad));
    }
}
