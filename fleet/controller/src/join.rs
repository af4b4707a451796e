//! Join scripts of channels, for machines that get `bellows-updater`: `GET /v1/join/CHANNEL`.
//!
//! Nobody is authenticated at this port. Its answers are made at the start from the settings alone,
//! and a request changes nothing. Without settings there is no port.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use daemon_kit::connections::http::{Limits, serve};
use daemon_kit::connections::{Bounds, ServerCounters};
use protocol::fleet::check_channel_name;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The script that the package of the updater has too.
const SCRIPT: &str = include_str!("../../updater/dist/join.sh");
/// Its line with the values that options replace.
const UNSET: &str = "base_url='' channel='' suite_url='' key='' key_text=''\n";
/// Most channels with a script; each script is kept in memory.
const MOST_CHANNELS: usize = 64;
/// Longest key in base64, and longest URL, bytes.
const MOST_KEY: usize = 64 << 10;
const MOST_URL: usize = 1024;

/// Members of `join`. With them the scripts are served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct JoinConfig {
    /// Folder of the packages and their index, `https:`.
    pub suite_url: String,
    /// Key that signs the suite, in base64.
    pub suite_key: String,
    /// Folder of channels, `https:`, by the name of the channel.
    pub channels: BTreeMap<String, String>,
}

impl JoinConfig {
    /// Checks the members. What is checked can stand between single quotes of a shell.
    ///
    /// # Errors
    /// The member at fault and the rule that it breaks.
    pub fn check(&self) -> Result<(), String> {
        let url = |name: &str, url: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/._~%@-".contains(&byte);
            let rest = url.strip_prefix("https://").unwrap_or_default();
            if rest.is_empty() || url.len() > MOST_URL || !url.bytes().all(is_plain) {
                return Err(format!(
                    "join.{name} must begin with https:// and have letters, digits and :/._~%@- alone"
                ));
            }
            Ok(())
        };
        url("suiteUrl", &self.suite_url)?;
        let key = self.suite_key.as_bytes();
        let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        let is_whole = !key.is_empty() && key.len().is_multiple_of(4) && key.len() <= MOST_KEY;
        if !is_whole || !key.iter().all(is_digit) {
            return Err("join.suiteKey must be a key of at most 48 KiB in base64".to_owned());
        }
        if !(1..=MOST_CHANNELS).contains(&self.channels.len()) {
            return Err("join.channels must name 1 to 64 channels".to_owned());
        }
        for (name, folder) in &self.channels {
            check_channel_name(name).map_err(|rule| format!("join.channels.{name} {rule}"))?;
            url(&format!("channels.{name}"), folder)?;
        }
        Ok(())
    }

    /// The script of each channel.
    fn scripts(&self) -> BTreeMap<String, String> {
        let script = |(name, folder): (&String, &String)| {
            let set = format!(
                "base_url='{folder}' channel='{name}' suite_url='{}' key='' key_text='{}'\n",
                self.suite_url, self.suite_key
            );
            (name.clone(), SCRIPT.replacen(UNSET, &set, 1))
        };
        self.channels.iter().map(script).collect()
    }
}

/// Serves the scripts until `cancel`.
pub async fn run(
    listener: TcpListener,
    config: JoinConfig,
    counters: ServerCounters,
    cancel: CancellationToken,
) {
    let routes = Router::new()
        .route("/v1/join/{channel}", get(script))
        .with_state(Arc::new(config.scripts()));
    let bounds = (Bounds::pages(), Limits::PAGES);
    serve(listener, routes, bounds, counters, cancel).await;
}

async fn script(
    State(scripts): State<Arc<BTreeMap<String, String>>>,
    Path(channel): Path<String>,
) -> Response {
    match scripts.get(&channel) {
        Some(script) => {
            let kind = [(header::CONTENT_TYPE, "text/x-shellscript; charset=utf-8")];
            (kind, script.clone()).into_response()
        }
        None => (StatusCode::NOT_FOUND, "no such channel\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> JoinConfig {
        JoinConfig {
            suite_url: "https://packages.example/".to_owned(),
            suite_key: "a2V5".to_owned(),
            channels: [("stable".to_owned(), "https://releases.example/".to_owned())].into(),
        }
    }

    /// Requirement: R35
    #[test]
    fn script_has_the_values_of_its_channel_and_nothing_else_differs() {
        sound().check().expect("sound");
        let script = sound().scripts().remove("stable").expect("a script");
        let differs: Vec<_> = SCRIPT
            .lines()
            .zip(script.lines())
            .filter(|(before, after)| before != after)
            .collect();
        let expected = "base_url='https://releases.example/' channel='stable' \
                        suite_url='https://packages.example/' key='' key_text='a2V5'";
        assert_eq!(differs, [(UNSET.trim_end(), expected)]);
        assert_eq!(SCRIPT.lines().count(), script.lines().count());
    }

    /// Requirement: R35
    #[test]
    fn value_that_could_leave_its_quotes_is_refused_by_name() {
        let with = |edit: fn(&mut JoinConfig)| {
            let mut config = sound();
            edit(&mut config);
            config.check().expect_err("a rule")
        };
        for (refused, member) in [
            (
                with(|it| it.suite_url = "http://a.example".into()),
                "join.suiteUrl",
            ),
            (with(|it| it.suite_url = "https://".into()), "join.suiteUrl"),
            (
                with(|it| it.suite_url = "https://a'; reboot; '".into()),
                "join.suiteUrl",
            ),
            (
                with(|it| it.suite_url = "https://a\nb".into()),
                "join.suiteUrl",
            ),
            (with(|it| it.suite_key.clear()), "join.suiteKey"),
            (with(|it| it.suite_key = "a'b=".into()), "join.suiteKey"),
            (with(|it| it.suite_key = "abc".into()), "join.suiteKey"),
            (
                with(|it| it.suite_key = "a".repeat(MOST_KEY + 4)),
                "join.suiteKey",
            ),
            (with(|it| it.channels.clear()), "join.channels"),
            (
                with(|it| {
                    drop(
                        it.channels
                            .insert("../x".into(), "https://a.example".into()),
                    )
                }),
                "join.channels.../x",
            ),
            (
                with(|it| {
                    drop(
                        it.channels
                            .insert("beta".into(), "https://a.example/$(x)".into()),
                    )
                }),
                "join.channels.beta",
            ),
        ] {
            assert!(refused.starts_with(member), "{refused}");
        }
    }
}
