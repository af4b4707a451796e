//! Reads the requests of the routes for parts.

use protocol::parts::{PartName, ROUTE};
use serde::Deserialize;

use super::record::Verb;
use super::refusal::Refusal;
use super::trial::is_token;

/// Longest version, bytes.
const VERSION_BYTES: usize = 64;
/// Shortest and longest trial, seconds.
const TRIAL_S: std::ops::RangeInclusive<u64> = 20..=600;
/// Longest body of an order, bytes.
pub const ORDER_BYTES: usize = 4 << 10;

/// Query of a `PUT`: the program that the body holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bring {
    /// SHA-256 that the body must have, lower-case hex.
    pub sha256: String,
    /// Release of the program.
    pub version: String,
    /// Token of the turn.
    pub token: String,
    /// Epoch of the order.
    pub epoch: u64,
}

/// Body of `POST` `try`, `keep` and `back`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Token of the turn.
    pub token: String,
    /// Epoch of the order. `try` needs it.
    #[serde(default)]
    pub epoch: u64,
    /// Length of the trial. `try` needs it.
    #[serde(default)]
    pub seconds: u64,
}

/// Part and verb of a path below [`ROUTE`]. `None` if the path names no part or no verb.
#[must_use]
pub fn path(path: &str) -> Option<(PartName, Verb)> {
    let rest = path.strip_prefix(ROUTE)?.strip_prefix('/')?;
    let (name, verb) = match rest.split_once('/') {
        None => (rest, Verb::Bring),
        Some((name, "try")) => (name, Verb::Try),
        Some((name, "keep")) => (name, Verb::Keep),
        Some((name, "back")) => (name, Verb::Back),
        Some(_) => return None,
    };
    Some((PartName::parse(name)?, verb))
}

const TOKEN_RULE: &str = "must be 1 to 64 letters, digits, `.`, `_` or `-`";

/// Reads the query of a `PUT`.
///
/// # Errors
/// [`Refusal::Malformed`] for the first member that is missing, doubled or malformed.
pub fn bring(query: &str) -> Result<Bring, Refusal> {
    let member = |field: &'static str, rule: &'static str| {
        let pairs = form_urlencoded::parse(query.as_bytes());
        let mut values = pairs.filter(|(key, _)| key == field);
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Ok(value.into_owned()),
            _ => Err(Refusal::Malformed { field, rule }),
        }
    };
    let sha256 = member("sha256", SHA_RULE)?;
    let version = member("version", VERSION_RULE)?;
    let token = member("token", TOKEN_RULE)?;
    let epoch = member("epoch", EPOCH_RULE)?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    check(
        sha256.len() == 64 && sha256.bytes().all(is_hex),
        "sha256",
        SHA_RULE,
    )?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let has_length = (1..=VERSION_BYTES).contains(&version.len());
    check(
        has_length && version.bytes().all(is_plain),
        "version",
        VERSION_RULE,
    )?;
    check(is_token(&token), "token", TOKEN_RULE)?;
    let epoch = epoch.parse().map_err(|_| Refusal::Malformed {
        field: "epoch",
        rule: EPOCH_RULE,
    })?;
    Ok(Bring {
        sha256,
        version,
        token,
        epoch,
    })
}

const SHA_RULE: &str = "must be the SHA-256 of the body in 64 lower-case hex digits, once";
const VERSION_RULE: &str = "must be a semantic version without build metadata, once";
const EPOCH_RULE: &str = "must be a whole number, once";

/// Reads the body of an order.
///
/// # Errors
/// [`Refusal::Malformed`].
pub fn order(verb: Verb, body: &[u8]) -> Result<Order, Refusal> {
    let rule = "must be JSON with token, and for try also epoch and seconds";
    let malformed = |_| Refusal::Malformed {
        field: "body",
        rule,
    };
    let order: Order = serde_json::from_slice(body).map_err(malformed)?;
    check(is_token(&order.token), "token", TOKEN_RULE)?;
    let in_range = TRIAL_S.contains(&order.seconds);
    check(
        verb != Verb::Try || in_range,
        "seconds",
        "must be 20 to 600",
    )?;
    Ok(order)
}

fn check(holds: bool, field: &'static str, rule: &'static str) -> Result<(), Refusal> {
    if holds {
        return Ok(());
    }
    Err(Refusal::Malformed { field, rule })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_parts_and_four_orders_have_a_path() {
        assert_eq!(
            path("/v1/parts/monitor"),
            Some((PartName::Monitor, Verb::Bring))
        );
        assert_eq!(
            path("/v1/parts/guestd/keep"),
            Some((PartName::Guestd, Verb::Keep))
        );
        for other in [
            "/v1/parts",
            "/v1/parts/",
            "/v1/parts/sshd",
            "/v1/parts/../x",
            "/v1/parts/monitor/",
            "/v1/parts/monitor/run",
            "/v1/parts/monitor/try/x",
            "/v1/partsmonitor",
            "/v1/parts/Monitor",
        ] {
            assert_eq!(path(other), None, "{other}");
        }
    }

    #[test]
    fn malformed_member_of_a_put_is_named() {
        let sha = "0".repeat(64);
        let good = format!("sha256={sha}&version=1.2.3-rc.1&token=t1&epoch=4");
        assert_eq!(bring(&good).map(|bring| bring.epoch), Ok(4));
        for (query, field) in [
            (String::new(), "sha256"),
            (good.replace(&sha, "0"), "sha256"),
            (good.replace(&sha, &"A".repeat(64)), "sha256"),
            (good.replace("1.2.3-rc.1", "1.2.3+x"), "version"),
            (good.replace("1.2.3-rc.1", "1%0A2"), "version"),
            (good.replace("t1", &"t".repeat(1024)), "token"),
            (good.replace("t1", "..%2Fx"), "token"),
            (good.replace("epoch=4", "epoch=-1"), "epoch"),
            (good.replace("&epoch=4", ""), "epoch"),
            (format!("{good}&token=t2"), "token"),
        ] {
            match bring(&query) {
                Err(Refusal::Malformed { field: named, .. }) => assert_eq!(named, field, "{query}"),
                other => panic!("{query}: {other:?}"),
            }
        }
    }

    #[test]
    fn malformed_order_is_refused() {
        let body = |text: &str| order(Verb::Try, text.as_bytes());
        assert!(body(r#"{"token":"t","epoch":1,"seconds":60}"#).is_ok());
        assert!(order(Verb::Keep, br#"{"token":"t"}"#).is_ok());
        for text in [
            "",
            "{}",
            "[]",
            r#"{"token":""}"#,
            r#"{"token":"t"}"#,
            r#"{"token":"t","seconds":5}"#,
            r#"{"token":"t","seconds":601}"#,
            r#"{"token":"t","seconds":60,"x":1}"#,
            r#"{"token":"a/b","seconds":60}"#,
            r#"{"token":"t","epoch":-1,"seconds":60}"#,
        ] {
            assert_eq!(
                body(text).map_err(|refusal| refusal.status()),
                Err(400),
                "{text}"
            );
        }
    }
}
