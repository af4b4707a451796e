//! Secrets and config maps of a pod as directories: written before the pod starts, and kept current
//! from then on, in the kubelet's layout.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use api_client::watch::{self as api_watch, Retry};
use daemon_kit::clock::Clock;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use neonvm_files::projected::{self, FilesError};
use protocol::admission::disks::{MOUNT_PATH_RULE, plain_mount_path};
use protocol::object::{KeyToPath, Pod};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::params::NodeParams;
use crate::core::paths::Paths;
use crate::core::pod::CONTAINER;

/// Directory of the guest's mounts in the runner's container.
const MOUNTS: &str = "/vm/mounts/";

type Files = BTreeMap<String, Vec<u8>>;

#[derive(Debug, thiserror::Error)]
pub(super) enum VolumeError {
    #[error("volume {volume:?}: {kind} {object:?} does not exist, create it")]
    Missing {
        volume: String,
        kind: Kind,
        object: String,
    },
    /// The object does not have a key of the volume.
    #[error(
        "volume {volume:?}: {kind} {object:?} has no key {key:?}, add it or take it from items"
    )]
    Key {
        volume: String,
        kind: Kind,
        object: String,
        key: String,
    },
    #[error("volume {0:?}: the API does not answer")]
    Api(String, #[source] kube::Error),
    /// A mount path that may lead out of the VM's directory.
    #[error("volume {volume:?}: mountPath {path:?} {MOUNT_PATH_RULE}")]
    MountPath { volume: String, path: String },
    #[error("volume {0:?}: its files cannot be written")]
    Write(String, #[source] FilesError),
}

/// Kinds of objects that a volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Secret,
    ConfigMap,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret => "secret",
            Self::ConfigMap => "config map",
        })
    }
}

/// A volume of a secret or config map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Projection {
    volume: String,
    kind: Kind,
    object: String,
    /// Keys and the files they become. Empty means all keys.
    items: Vec<KeyToPath>,
    /// Mount path in the guest without the leading slash.
    place: String,
}

/// The runner's volumes that the guest sees.
///
/// # Errors
/// [`VolumeError::MountPath`] for the first mount path that is not a plain one: a user's own pod
/// can have any.
pub(super) fn projections(pod: &Pod) -> Result<Vec<Projection>, VolumeError> {
    let mut containers = pod.spec.containers.iter();
    let Some(container) = containers.find(|container| container.name == CONTAINER) else {
        return Ok(Vec::new());
    };
    let of_mount = |mount: &protocol::object::VolumeMount| {
        let place = mount.mount_path.strip_prefix(MOUNTS)?;
        let Some(place) = plain_mount_path(&format!("/{place}")) else {
            return Some(Err(VolumeError::MountPath {
                volume: mount.name.clone(),
                path: mount.mount_path.chars().take(64).collect(),
            }));
        };
        let mut volumes = pod.spec.volumes.iter();
        let volume = volumes.find(|volume| volume.name == mount.name)?;
        let (kind, object, items) = match (&volume.secret, &volume.config_map) {
            (Some(secret), _) => (Kind::Secret, &secret.secret_name, &secret.items),
            (None, Some(map)) => (Kind::ConfigMap, &map.name, &map.items),
            (None, None) => return None,
        };
        Some(Ok(Projection {
            volume: volume.name.clone(),
            kind,
            object: object.clone(),
            items: items.clone(),
            place: place.trim_start_matches('/').to_owned(),
        }))
    };
    container
        .volume_mounts
        .iter()
        .filter_map(of_mount)
        .collect()
}

impl Projection {
    /// Files of the volume from the object's data.
    fn files(&self, mut data: Files) -> Result<Files, VolumeError> {
        if self.items.is_empty() {
            return Ok(data);
        }
        let mut files = Files::new();
        for KeyToPath { key, path } in &self.items {
            let content = data.remove(key).ok_or_else(|| VolumeError::Key {
                volume: self.volume.clone(),
                kind: self.kind,
                object: self.object.clone(),
                key: key.clone(),
            })?;
            files.insert(path.clone(), content);
        }
        Ok(files)
    }

    fn write(&self, mounts: &Path, data: Option<Files>, clock: &Clock) -> Result<(), VolumeError> {
        let data = data.ok_or_else(|| VolumeError::Missing {
            volume: self.volume.clone(),
            kind: self.kind,
            object: self.object.clone(),
        })?;
        let (dir, files) = (mounts.join(&self.place), self.files(data)?);
        projected::write(&dir, &files, clock.wall())
            .map_err(|error| VolumeError::Write(self.volume.clone(), error))
    }
}

fn of_secret(secret: Secret) -> Files {
    let data = secret.data.into_iter().flatten();
    data.map(|(key, value)| (key, value.0)).collect()
}

fn of_map(map: ConfigMap) -> Files {
    let texts = map
        .data
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, value.into_bytes()));
    let binary = map.binary_data.into_iter().flatten();
    texts
        .chain(binary.map(|(key, value)| (key, value.0)))
        .collect()
}

/// Writes all volumes in their current state.
pub(super) async fn write_all(
    params: &NodeParams,
    namespace: &str,
    pod: &Pod,
    dir: &Path,
) -> Result<(), VolumeError> {
    let mounts = Paths::new(dir).mounts();
    for projection in projections(pod)? {
        let api_error = |error| VolumeError::Api(projection.volume.clone(), error);
        let (client, name) = (params.client.clone(), &projection.object);
        let data = match projection.kind {
            Kind::Secret => {
                let api: Api<Secret> = Api::namespaced(client, namespace);
                api.get_opt(name).await.map_err(api_error)?.map(of_secret)
            }
            Kind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(client, namespace);
                api.get_opt(name).await.map_err(api_error)?.map(of_map)
            }
        };
        projection.write(&mounts, data, &params.clock)?;
    }
    Ok(())
}

/// Keeps all volumes current until the returned set is dropped.
pub(super) fn keep_all(params: &NodeParams, namespace: &str, pod: &Pod, dir: &Path) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    // A pod with refused volumes is never prepared.
    for projection in projections(pod).unwrap_or_default() {
        let client = params.client.clone();
        let keeper = Keeper {
            mounts: Paths::new(dir).mounts(),
            clock: params.clock,
            pod: format!("{namespace}/{}", pod.metadata.name),
            problem: None,
            projection,
        };
        match keeper.projection.kind {
            Kind::Secret => {
                let api: Api<Secret> = Api::namespaced(client, namespace);
                tasks.spawn(keeper.keep(api, of_secret));
            }
            Kind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(client, namespace);
                tasks.spawn(keeper.keep(api, of_map));
            }
        }
    }
    tasks
}

struct Keeper {
    projection: Projection,
    mounts: PathBuf,
    clock: Clock,
    pod: String,
    /// The last problem in the log.
    problem: Option<String>,
}

impl Keeper {
    async fn keep<K>(mut self, api: Api<K>, data: fn(K) -> Files)
    where
        K: kube::Resource<DynamicType = ()> + Clone + fmt::Debug + Send + 'static,
        K: serde::de::DeserializeOwned,
    {
        let object = self.projection.object.clone();
        let mut states = api_watch::object(api, &object, Retry::Patient);
        while let Some(state) = states.next().await {
            match state {
                Ok(state) => self.take(state.map(data)),
                Err(error) => tracing::debug!(
                    error = daemon_kit::chain(&error),
                    "watch of a volume failed, retrying"
                ),
            }
        }
    }

    /// Existing files stay if the object, or a part of it, is gone: a guest depends on them.
    fn take(&mut self, data: Option<Files>) {
        let written = self.projection.write(&self.mounts, data, &self.clock);
        let problem = written.err().map(|error| daemon_kit::chain(&error));
        if problem == self.problem {
            return;
        }
        let (pod, volume) = (&self.pod, &self.projection.volume);
        match &problem {
            Some(problem) => warn!(pod, volume, problem, "the volume stays as it was"),
            None => info!(pod, volume, "volume is in sync with the API again"),
        }
        self.problem = problem;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "vm-abcde", "namespace": "default"},
            "spec": {
                "containers": [
                    {"name": "other", "volumeMounts": [{"name": "a", "mountPath": "/vm/mounts/no"}]},
                    {"name": CONTAINER, "volumeMounts": [
                        {"name": "images", "mountPath": "/vm/images"},
                        {"name": "a", "mountPath": "/vm/mounts/var/sync/"},
                        {"name": "b", "mountPath": "/vm/mounts/etc/b"},
                        {"name": "data", "mountPath": "/vm/mounts/data"},
                        {"name": "gone", "mountPath": "/vm/mounts/gone"},
                        {"name": "key", "mountPath": "/vm/ssh"},
                    ]},
                ],
                "volumes": [
                    {"name": "images", "emptyDir": {}},
                    {"name": "a", "secret": {"secretName": "s", "items": [{"key": "k", "path": "f"}]}},
                    {"name": "b", "configMap": {"name": "m"}},
                    {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}},
                    {"name": "key", "secret": {"secretName": "x"}},
                ],
            },
        }))
        .unwrap()
    }

    fn data(pairs: &[(&str, &str)]) -> Files {
        let pairs = pairs.iter();
        let own = pairs.map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()));
        own.collect()
    }

    #[test]
    fn volumes_of_the_runner_that_guests_see_are_found() {
        let found = projections(&pod()).unwrap();
        let places: Vec<(&str, Kind, &str, usize)> = found
            .iter()
            .map(|one| {
                (
                    one.place.as_str(),
                    one.kind,
                    one.object.as_str(),
                    one.items.len(),
                )
            })
            .collect();
        let expected = [
            ("var/sync", Kind::Secret, "s", 1),
            ("etc/b", Kind::ConfigMap, "m", 0),
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn mount_path_that_leads_out_of_the_directory_is_refused() {
        for path in [
            "/vm/mounts/../../../../etc/cron.d",
            "/vm/mounts/a/../../x",
            "/vm/mounts/",
            "/vm/mounts/a/./b",
            "/vm/mounts/a\0b",
        ] {
            let mut pod = pod();
            pod.spec.containers[1].volume_mounts[1].mount_path = path.into();
            let refused = projections(&pod).expect_err(path).to_string();
            assert!(refused.contains(MOUNT_PATH_RULE), "{refused}");
        }
    }

    #[test]
    fn missing_object_is_named_and_old_files_stay() {
        let temp = tempfile::tempdir().unwrap();
        let clock = Clock::new();
        let one = &projections(&pod()).unwrap()[0];
        let missing = one.write(temp.path(), None, &clock).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "volume \"a\": secret \"s\" does not exist, create it"
        );
        one.write(
            temp.path(),
            Some(data(&[("k", "1"), ("other", "2")])),
            &clock,
        )
        .unwrap();
        let read = || projected::read(&temp.path().join("var/sync")).unwrap();
        assert_eq!(read(), data(&[("f", "1")]));
        let key = one
            .write(temp.path(), Some(data(&[("other", "2")])), &clock)
            .unwrap_err();
        assert!(key.to_string().contains("has no key \"k\""), "{key}");
        let mut bad = one.clone();
        bad.items[0].path = "a/b".to_owned();
        let path = bad
            .write(temp.path(), Some(data(&[("k", "3")])), &clock)
            .unwrap_err();
        assert!(
            daemon_kit::chain(&path).contains("\"a/b\" is not a plain file name"),
            "{path}"
        );
        assert_eq!(read(), data(&[("f", "1")]));
    }
}
