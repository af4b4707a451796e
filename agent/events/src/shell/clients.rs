//! Receivers of events as the configuration names them. Source: docs/compatibility/agent.md §5.2.

use std::time::Duration;

use protocol::time::Span;
use serde::Deserialize;
use serde_json::Value;

/// Batch size and times, the same keys for each kind of receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pace {
    push_every_seconds: u64,
    push_request_timeout_seconds: u64,
    max_batch_size: u64,
}

impl Pace {
    /// Longest time that an event waits for its batch to fill.
    pub(crate) fn push_every(&self) -> Span {
        Span::from_secs(self.push_every_seconds)
    }

    /// Time limit of one attempt.
    pub(crate) fn timeout(&self) -> Duration {
        Span::from_secs(self.push_request_timeout_seconds).to_duration()
    }

    /// Largest number of events in a batch.
    pub(crate) fn max_events(&self) -> u64 {
        self.max_batch_size
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct HttpConfig {
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct S3Config {
    pub bucket: String,
    pub region: String,
    #[serde(default)]
    pub endpoint: Option<String>,
    #[serde(default)]
    pub prefix_in_bucket: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AzureConfig {
    pub endpoint: String,
    pub container: String,
    #[serde(default)]
    pub prefix_in_container: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Http(HttpConfig),
    S3(S3Config),
    Azure(AzureConfig),
}

impl Kind {
    /// Label value in metrics, and file name of the cursor.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::S3(_) => "s3",
            Self::Azure(_) => "azureblob",
        }
    }

    /// Folder of the objects in the bucket; empty = the bucket's root.
    pub(crate) fn prefix(&self) -> &str {
        let prefix = match self {
            Self::Http(_) => None,
            Self::S3(config) => config.prefix_in_bucket.as_deref(),
            Self::Azure(config) => config.prefix_in_container.as_deref(),
        };
        prefix.unwrap_or_default().trim_matches('/')
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceiverConfig {
    pub kind: Kind,
    pub pace: Pace,
}

/// The receivers in a checked `clients` object, in a fixed order.
pub(crate) fn receivers(clients: &Value) -> Vec<ReceiverConfig> {
    fn read<T: for<'de> Deserialize<'de>>(value: &Value) -> Option<T> {
        T::deserialize(value).ok()
    }
    let one = |key: &str| {
        let value = clients.get(key).filter(|value| !value.is_null())?;
        let kind = match key {
            "http" => Kind::Http(read(value)?),
            "s3" => Kind::S3(read(value)?),
            _ => Kind::Azure(read(value)?),
        };
        Some(ReceiverConfig {
            kind,
            pace: read(value)?,
        })
    };
    ["azureBlob", "http", "s3"]
        .into_iter()
        .filter_map(one)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_kinds_of_clients_are_read() {
        let pace =
            json!({"pushEverySeconds": 30, "pushRequestTimeoutSeconds": 10, "maxBatchSize": 1000});
        let with = |more: Value| {
            let mut client = pace.clone();
            for (key, value) in more.as_object().expect("an object") {
                client[key] = value.clone();
            }
            client
        };
        let clients = json!({
            "http": with(json!({"url": "http://x"})),
            "s3": with(json!({"bucket": "b", "region": "r", "prefixInBucket": "a/b/"})),
            "azureBlob": with(json!({"endpoint": "https://a.blob.core.windows.net/", "container": "c"})),
        });
        let all = receivers(&clients);
        let names: Vec<_> = all
            .iter()
            .map(|one| (one.kind.name(), one.kind.prefix()))
            .collect();
        assert_eq!(names, [("azureblob", ""), ("http", ""), ("s3", "a/b")]);
        assert_eq!(all[0].pace.push_every(), Span::from_secs(30));
        assert_eq!(
            (all[0].pace.max_events(), all[0].pace.timeout().as_secs()),
            (1000, 10)
        );
        assert!(receivers(&json!({"http": null, "s3": null})).is_empty());
    }
}
