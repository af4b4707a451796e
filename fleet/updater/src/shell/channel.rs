//! Reads the two texts of a channel, by https with TLS 1.2 or newer or of this machine.

use std::time::Duration;

use protocol::fleet::{CHANNEL_TEXT_BYTES, channel_critical, channel_version};
use reqwest::{Certificate, Client, StatusCode, Url, redirect, tls};
use semver::Version;

use super::files;
use super::settings::Settings;

/// Longest time for a text.
const WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Redirects that are followed. Each leads to https again.
const MAX_REDIRECTS: usize = 3;

/// What a channel names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channel {
    /// Its version, or why there is none.
    pub version: Result<Version, String>,
    /// Whether the version is critical. False if that cannot be read.
    pub is_critical: bool,
}

/// Reads the channel of the settings.
#[must_use]
pub fn read(settings: &Settings) -> Channel {
    read_trusting(settings, &[])
}

/// Reads the channel, and trusts these authorities in PEM beside the machine's.
#[must_use]
pub fn read_trusting(settings: &Settings, authorities: &[&[u8]]) -> Channel {
    let text = |name| read_text(settings, name, authorities);
    let version = text("version").and_then(|text| {
        let rule = |rule| format!("the channel's version {rule}");
        channel_version(&text).map_err(rule)
    });
    let is_critical = version.is_ok() && text("critical").is_ok_and(|text| channel_critical(&text));
    Channel {
        version,
        is_critical,
    }
}

fn read_text(settings: &Settings, name: &str, authorities: &[&[u8]]) -> Result<Vec<u8>, String> {
    let mut url = settings.base_url.clone();
    let segments = ["v1", &settings.channel, name];
    url.path_segments_mut()
        .map_err(|()| format!("{} has no path", settings.base_url))?
        .pop_if_empty()
        .extend(segments);
    if url.scheme() == "file" {
        let path = url
            .to_file_path()
            .map_err(|()| format!("{url} names another machine"))?;
        let read = files::read(&path, CHANNEL_TEXT_BYTES).map_err(|error| error.to_string())?;
        return read.ok_or_else(|| format!("{url} is not there"));
    }
    if url.scheme() != "https" {
        return Err(format!("{url} must begin with https: or file:"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("failed to start a runtime: {error}"))?;
    runtime.block_on(async {
        let download = tokio::time::timeout(WITHIN, download(&url, authorities)).await;
        let download = download.map_err(|_| format!("no end within {WITHIN:?}"));
        download
            .flatten()
            .map_err(|reason| format!("failed to read {url}: {reason}"))
    })
}

async fn download(url: &Url, authorities: &[&[u8]]) -> Result<Vec<u8>, String> {
    let failed = |error: reqwest::Error| causes(&error.without_url());
    let certificates = authorities.iter().map(|pem| Certificate::from_pem(pem));
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(failed)?;
    let client = Client::builder()
        .https_only(true)
        .tls_version_min(tls::Version::TLS_1_2)
        .redirect(redirect::Policy::limited(MAX_REDIRECTS))
        .connect_timeout(CONNECT_WITHIN)
        .tls_certs_merge(certificates)
        .build()
        .map_err(failed)?;
    let mut response = client.get(url.clone()).send().await.map_err(failed)?;
    if response.status() != StatusCode::OK {
        return Err(format!("the server answered {}", response.status()));
    }
    let mut content = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(failed)? {
        content.extend_from_slice(&piece);
        if content.len() > CHANNEL_TEXT_BYTES {
            return Err(format!("it has more than {CHANNEL_TEXT_BYTES} bytes"));
        }
    }
    Ok(content)
}

fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", causes(cause)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn settings(base_url: &str) -> Settings {
        Settings {
            enabled: true,
            base_url: Url::parse(base_url).expect("a URL"),
            channel: "stable".to_owned(),
            page: None,
        }
    }

    fn put(folder: &Path, name: &str, content: &[u8]) {
        let channel = folder.join("v1/stable");
        std::fs::create_dir_all(&channel).expect("a folder");
        std::fs::write(channel.join(name), content).expect("written");
    }

    /// Requirements: R03, R04, R06
    #[test]
    fn channel_of_a_folder_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = format!("file:{}", folder.path().display());
        let read = || read(&settings(&base));
        assert!(read().version.is_err(), "there is no file");
        put(folder.path(), "critical", b"yes\n");
        assert!(!read().is_critical, "no version, so nothing is critical");
        put(folder.path(), "version", b"1.2.3\n");
        assert_eq!(read().version, Ok(Version::new(1, 2, 3)));
        assert!(read().is_critical);
        put(folder.path(), "critical", &[b'y'; 100]);
        assert!(!read().is_critical, "it is too long");
        put(folder.path(), "version", b"<html>");
        assert!(read().version.is_err());
        std::fs::remove_file(folder.path().join("v1/stable/version")).expect("removed");
        std::fs::create_dir(folder.path().join("v1/stable/version")).expect("a folder");
        assert!(read().version.is_err());
    }

    /// Requirement: R05
    #[test]
    fn channel_by_plain_http_or_on_another_machine_is_refused() {
        for base in ["http://127.0.0.1:1/", "file://host/srv", "data:x"] {
            let read = read(&settings(base));
            assert!(read.version.is_err(), "{base}");
            assert!(!read.is_critical, "{base}");
        }
    }
}
