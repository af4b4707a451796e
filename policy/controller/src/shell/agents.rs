//! Reads what agents report: of the agent in this process, or of every agent of a cluster.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::http_client::{HttpClient, HttpError};
use futures::StreamExt as _;
use hyper::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use policy_contract::tally::VersionReport;
use tokio::net::TcpStream;

use crate::core::reconcile::NodeReport;

/// Page of an agent.
const PAGE: &str = "/policies";
/// Longest page, bytes.
const PAGE_MAX: usize = 8 << 20;
/// Time limit of a page.
const PATIENCE: Duration = Duration::from_secs(5);
/// Agents that are asked at the same time.
const AT_ONCE: usize = 16;

/// Returns the reports of an agent.
pub type ReadReports = Arc<dyn Fn() -> Vec<VersionReport> + Send + Sync>;

/// Where agents are.
#[derive(Clone)]
pub enum Agents {
    /// In this process.
    Here {
        /// Name of the node.
        node: String,
        /// Reads its reports.
        read: ReadReports,
    },
    /// One agent in a pod of each node.
    InPods(AgentPods),
}

/// Pods of agents.
#[derive(Debug, Clone)]
pub struct AgentPods {
    /// Selects them, as `name=autoscaler-agent`.
    pub labels: String,
    /// Port of their metrics.
    pub port: u16,
}

impl fmt::Debug for Agents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here { node, .. } => f.debug_tuple("Here").field(node).finish(),
            Self::InPods(pods) => f.debug_tuple("InPods").field(pods).finish(),
        }
    }
}

impl Agents {
    /// What each agent reports. One that does not answer has a report without versions.
    pub(super) async fn reports(&self, client: &kube::Client) -> kube::Result<Vec<NodeReport>> {
        match self {
            Self::Here { node, read } => Ok(vec![NodeReport {
                node: node.clone(),
                versions: Some(read()),
            }]),
            Self::InPods(pods) => pods.reports(client.clone()).await,
        }
    }
}

impl AgentPods {
    async fn reports(&self, client: kube::Client) -> kube::Result<Vec<NodeReport>> {
        let api: Api<Pod> = Api::all(client);
        let listed = api
            .list(&ListParams::default().labels(&self.labels))
            .await?;
        let running = listed.items.into_iter().filter_map(|pod| {
            let is_ending = pod.metadata.deletion_timestamp.is_some();
            let status = pod.status.filter(|_| !is_ending)?;
            let node = pod.spec?.node_name?;
            // A pod that is not started decides about no VM.
            let address = status.pod_ip?;
            (status.phase.as_deref() == Some("Running")).then_some((node, address))
        });
        let asked = running.map(|(node, address)| async move {
            let versions = self.read(&address).await;
            if let Err(error) = &versions {
                let error = daemon_kit::chain(error);
                tracing::warn!(node, error, "the agent's policies are unknown");
            }
            NodeReport {
                node,
                versions: versions.ok(),
            }
        });
        let asked: Vec<_> = asked.collect();
        let mut reports: Vec<NodeReport> = futures::stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        reports.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(reports)
    }

    async fn read(&self, address: &str) -> Result<Vec<VersionReport>, HttpError> {
        let connect = async {
            let address = address.trim_matches(['[', ']']);
            let ip = address.parse::<IpAddr>().map_err(std::io::Error::other);
            let ip = ip.map_err(HttpError::Connect)?;
            let stream = TcpStream::connect((ip, self.port)).await;
            HttpClient::over(stream.map_err(HttpError::Connect)?, "agent").await
        };
        let connected = tokio::time::timeout(PATIENCE, connect).await;
        let client = connected.map_err(|_| HttpError::Late(PATIENCE))??;
        let mut client = client.with_body_limit(PAGE_MAX);
        let page = client.send(Method::GET, PAGE, "", PATIENCE).await?;
        serde_json::from_slice(&page).map_err(HttpError::Malformed)
    }
}
