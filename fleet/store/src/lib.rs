//! Objects of the fleet in the Kubernetes API. Commands build what they write
//! by the same functions, and send it as a person could.
//!
//! [`FleetStore::load`] reads all objects and checks each. One that cannot be read hurts its own
//! environment or less, and is listed. [`FleetStore::write`] carries out a [`fleet_core::Write`].
//! It checks the object first, and replaces only the version that was read.

#![forbid(unsafe_code)]

mod channels;
mod follow;
mod instances;
mod load;
mod moves;
mod objects;
mod programs;
mod revisions;
mod unmanaged;
mod write;

pub use channels::{Follower, LoadedChannel};
pub use instances::{Instances, LoadedInstance};
pub use load::{Loaded, LoadedEnvironment, Problem};
pub use objects::{
    Owner, OwnerKind, deployment_object, environment_object, newest_revision, own, revision_object,
};
pub use programs::{Programs, sha256_of};
pub use revisions::{KeptRevision, kept_revisions};
pub use unmanaged::{DaemonSigns, Unmanaged, observed, seen};

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use protocol::fleet::{FleetKind, GROUP, VERSION};

/// Path of the API group.
pub const ROOT: &str = "/apis/fleet.bellows.dev/v1alpha1";

/// Access to the objects of all namespaces.
#[derive(Clone)]
pub struct FleetStore {
    client: kube::Client,
}

impl FleetStore {
    /// Access by a client.
    #[must_use]
    pub const fn new(client: kube::Client) -> Self {
        Self { client }
    }

    fn all(&self, kind: FleetKind) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource(kind))
    }

    fn of(&self, kind: FleetKind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource(kind))
    }

    fn revisions(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &revision_resource())
    }

    fn revisions_of(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &revision_resource())
    }
}

fn revision_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("apps", "v1", "ControllerRevision");
    ApiResource::from_gvk(&kind)
}

fn resource(kind: FleetKind) -> ApiResource {
    let gvk = GroupVersionKind::gvk(GROUP, VERSION, kind.as_str());
    ApiResource::from_gvk_with_plural(&gvk, kind.plural())
}
