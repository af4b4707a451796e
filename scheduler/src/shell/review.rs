//! Tokens that the API server knows: those of service accounts, reviewed by a `TokenReview`.
//!
//! A token must be valid for our audience, and its user one of those that may ask. Where the API
//! server says on which node the token's pod runs (Kubernetes 1.32 does, of tokens bound to a pod)
//! only pods of that node may be asked for.
//!
//! What came of a review is kept for a bounded time, by the token's digest and not by the token: an
//! agent asks every few seconds, and a token that is revoked must not be good for long. Reviews
//! under way are bounded too, so that whoever sends made-up tokens cannot have the API server
//! flooded.

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

use super::callers::Scope;
use super::metrics::Metrics;

/// How long a token that was found good is not reviewed again.
pub const REVIEW_LASTS: Span = Span::from_secs(60);
/// The same for one that was not: its user may just be made.
const REFUSAL_LASTS: Span = Span::from_secs(5);
/// Tokens kept: four for each of a thousand nodes.
const MAX_KEPT: usize = 4096;
/// Longest token that is reviewed, bytes. A service account's has about a thousand.
const MAX_TOKEN: usize = 16 << 10;
/// Reviews under way.
const MAX_UNDER_WAY: usize = 16;
/// Where the API server says on which node the token's pod runs.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Whose tokens are good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewRule {
    /// What a token must be for.
    pub audience: String,
    /// Who may ask, such as `system:serviceaccount:kube-system:autoscaler-agent`.
    pub users: BTreeSet<String>,
    /// How long a token that was found good is not reviewed again.
    pub lasts: Span,
}

type Outcome = Result<Scope, PermitRefusal>;

pub(super) struct Reviewer {
    pub(super) rule: ReviewRule,
    pub(super) client: Client,
    pub(super) timeout: Duration,
    pub(super) clock: Clock,
    pub(super) metrics: Metrics,
    /// Where calls are made: not on the thread that decides.
    pub(super) elsewhere: Handle,
    pub(super) kept: Mutex<Kept>,
    pub(super) gate: Arc<Semaphore>,
}

/// What came of reviews, until when it is believed.
#[derive(Default)]
pub(super) struct Kept {
    by_digest: BTreeMap<[u8; 32], (Timestamp, Outcome)>,
    ends: BTreeSet<(Timestamp, [u8; 32])>,
}

impl Kept {
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
        // Made-up tokens end first, for they are believed to be bad for less long.
        if self.by_digest.len() > MAX_KEPT
            && let Some((_, first)) = self.ends.pop_first()
        {
            self.by_digest.remove(&first);
        }
    }
}

impl Reviewer {
    pub(super) fn gate() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(MAX_UNDER_WAY))
    }

    /// What whoever shows this token may ask for.
    pub(super) async fn scope(&self, token: &[u8]) -> Outcome {
        let bad = PermitRefusal::Unauthorized(Unproved::BadToken);
        let token = std::str::from_utf8(token).ok();
        let token = token.filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN);
        let token = token.ok_or(bad)?;
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.known(&digest) {
            return known;
        }
        let place = tokio::time::timeout(self.timeout, self.gate.acquire());
        let Ok(Ok(_place)) = place.await else {
            return Err(PermitRefusal::Unreviewed);
        };
        // Another connection may have shown it meanwhile.
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
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.put(until, digest, outcome.clone());
        outcome
    }

    fn known(&self, digest: &[u8; 32]) -> Option<Outcome> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(self.clock.now(), digest)
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
        let call = self.elsewhere.spawn(call);
        let (outcome, why) = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(Ok(reviewed))) => {
                self.metrics.k8s_op_done(op);
                let outcome = judge(&self.rule, reviewed.status.unwrap_or_default());
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

/// What the API server's answer means.
fn judge(rule: &ReviewRule, status: TokenReviewStatus) -> Outcome {
    if status.authenticated != Some(true) {
        // It says so of a token for another audience too, as an error in words.
        let audience = status.error.is_some_and(|error| error.contains("audience"));
        return Err(PermitRefusal::Unauthorized(if audience {
            Unproved::WrongAudience
        } else {
            Unproved::BadToken
        }));
    }
    // A reviewer that does not know of audiences leaves them out, and vouches for its own alone.
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
        // Several nodes, or none by name: nothing that can be kept to.
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
    fn only_a_valid_token_of_ours_for_us_is_good_and_only_for_its_node() {
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
            assert_eq!(judge(&rule(), read), expected, "{status}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded_in_time_and_number() {
        let mut kept = Kept::default();
        let digest = |n: usize| -> [u8; 32] { Sha256::digest(n.to_string()).into() };
        let (good, bad) = (Ok(Scope::AnyNode), Err(PermitRefusal::Forbidden));
        kept.put(Timestamp(100), digest(0), good.clone());
        assert_eq!(kept.get(Timestamp(99), &digest(0)), Some(good.clone()));
        for n in 1..2 * MAX_KEPT {
            kept.put(Timestamp(50), digest(n), bad.clone());
        }
        assert_eq!(kept.by_digest.len(), MAX_KEPT);
        assert_eq!(kept.ends.len(), MAX_KEPT);
        assert_eq!(kept.get(Timestamp(49), &digest(0)), Some(good));
        assert_eq!(kept.get(Timestamp(100), &digest(0)), None);
        assert!(kept.by_digest.is_empty() && kept.ends.is_empty());
        // The same one again is believed until the later time.
        kept.put(Timestamp(150), digest(1), bad.clone());
        kept.put(Timestamp(200), digest(1), bad.clone());
        assert_eq!(kept.get(Timestamp(199), &digest(1)), Some(bad));
    }
}
