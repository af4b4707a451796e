//! Reads pages of members for their feeds. A page that is missing, late, too large or malformed
//! gives no value. Redirects are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use daemon_kit::http_client::{HttpClient, HttpError};
use futures::StreamExt as _;
use hyper::Method;
use protocol::exposition::Page;
use tokio::net::TcpStream;

use crate::core::sets::{Pages, Values};

/// Page of a guest.
const PAGE: &str = "/metrics";
/// Longest page, bytes.
const PAGE_MAX: usize = 1 << 20;
/// Time limit of a page.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time limit of all pages of a round.
const ALL: Duration = Duration::from_secs(6);
/// Pages that are read at the same time.
const AT_ONCE: usize = 32;

pub(super) async fn read(pages: Pages) -> Values {
    let reads = pages
        .into_iter()
        .map(|((address, port), names)| async move {
            let page = tokio::time::timeout(PATIENCE, page(&address, port, &names)).await;
            match page {
                Ok(Ok(values)) => Some(((address, port), values)),
                Ok(Err(error)) => {
                    let error = daemon_kit::chain(&error);
                    tracing::debug!(address, port, error, "failed to read a feed");
                    None
                }
                Err(_) => None,
            }
        });
    let reads: Vec<_> = reads.collect();
    let mut values = Values::new();
    let mut stream = futures::stream::iter(reads).buffer_unordered(AT_ONCE);
    let all = async {
        while let Some(page) = stream.next().await {
            values.extend(page);
        }
    };
    // Pages that are not read by then have no value in this round.
    let _ = tokio::time::timeout(ALL, all).await;
    values
}

async fn page(
    address: &str,
    port: u16,
    names: &BTreeSet<String>,
) -> Result<BTreeMap<String, f64>, HttpError> {
    let address = address.trim_matches(['[', ']']);
    let ip = address.parse::<IpAddr>().map_err(std::io::Error::other);
    let ip = ip.map_err(HttpError::Connect)?;
    let stream = TcpStream::connect((ip, port)).await;
    let stream = stream.map_err(HttpError::Connect)?;
    let client = HttpClient::over(stream, "guest").await?;
    let mut client = client.with_body_limit(PAGE_MAX);
    let body = client.send(Method::GET, PAGE, "", PATIENCE).await?;
    let names: Vec<String> = names.iter().cloned().collect();
    let mut page = Page::wanted(names.clone().into());
    page.feed(&body);
    let named = names.into_iter().zip(page.into_values());
    Ok(named
        .filter_map(|(name, value)| Some((name, value?)))
        .collect())
}
