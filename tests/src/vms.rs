//! The VirtualMachines of one namespace, through the API.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use protocol::postgres;
use protocol::vm::VirtualMachine;
use serde_json::{Value, json};

use crate::patience::wait_for;

/// The image with a database in it.
const POSTGRES_IMAGE: &str = "bellows/postgres:15";

/// The API resource of VirtualMachines.
#[must_use]
pub fn vm_resource() -> ApiResource {
    ApiResource {
        group: "vm.neon.tech".into(),
        version: "v1".into(),
        api_version: "vm.neon.tech/v1".into(),
        kind: "VirtualMachine".into(),
        plural: "virtualmachines".into(),
    }
}

/// Has a VM of the PostgreSQL image get its password from a secret, whose name it returns.
fn give_password(object: &mut Value) -> Option<String> {
    let image = &object["spec"]["guest"]["rootDisk"]["image"];
    if *image != POSTGRES_IMAGE || postgres::secret_of(object).is_some() {
        return None;
    }
    let secret = postgres::secret_name(object["metadata"]["name"].as_str()?);
    let spec = object["spec"].as_object_mut()?;
    let disks = spec.entry("disks").or_insert_with(|| json!([]));
    disks.as_array_mut()?.push(postgres::disk(&secret));
    Some(secret)
}

/// A random password.
fn word() -> String {
    format!("{:016x}", RandomState::new().hash_one(()))
}

/// VMs of namespace `default`.
#[derive(Debug, Clone)]
pub struct Vms(Api<DynamicObject>);

impl Vms {
    /// By a client of the API they are in.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self(Api::namespaced_with(client, "default", &vm_resource()))
    }

    /// Creates a VM. One with a PostgreSQL image gets a password secret, as from `bellows vm
    /// create`.
    ///
    /// # Errors
    ///
    /// The API's refusal.
    pub async fn create(&self, object: &Value) -> Result<()> {
        let mut object = object.clone();
        let secret = give_password(&mut object);
        let object: DynamicObject = serde_json::from_value(object)?;
        self.0.create(&PostParams::default(), &object).await?;
        if let Some(name) = secret {
            let secrets: Api<Secret> = Api::namespaced(self.0.clone().into_client(), "default");
            let secret = json!({"metadata": {"name": name}, "stringData": {postgres::KEY: word()}});
            let secret: Secret = serde_json::from_value(secret)?;
            match secrets.create(&PostParams::default(), &secret).await {
                // Of an earlier VM of this name.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// One as it stands in the API.
    ///
    /// # Errors
    /// When there is none or it does not decode.
    pub async fn get(&self, name: &str) -> Result<VirtualMachine> {
        let object = self.0.get(name).await?;
        Ok(serde_json::from_value(serde_json::to_value(object)?)?)
    }

    /// Waits until `wanted` holds for a VM.
    ///
    /// # Errors
    ///
    /// Names the wanted state and the last status.
    pub async fn wait(
        &self,
        name: &str,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&VirtualMachine) -> bool,
    ) -> Result<VirtualMachine> {
        wait_for(what, patience, || async {
            match self.get(name).await {
                Ok(vm) if wanted(&vm) => Ok(vm),
                Ok(vm) => Err(format!(
                    "{:?}, wants {:?}",
                    vm.status,
                    vm.spec.guest.in_use()
                )),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
    }

    /// Requests a size as the agent does, in one JSON patch.
    ///
    /// # Errors
    ///
    /// The API's refusal.
    pub async fn patch_size(
        &self,
        name: &str,
        milli_cpu: u32,
        slots: u32,
        revision: i64,
    ) -> Result<()> {
        let operations = json!([
            {"op": "replace", "path": "/spec/guest/cpus/use", "value": protocol::units::MilliCpu(milli_cpu)},
            {"op": "replace", "path": "/spec/guest/memorySlots/use", "value": slots},
            {"op": "add", "path": "/spec/targetRevision", "value":
                {"revision": {"value": revision, "flags": 0}, "updatedAt": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()}},
        ]);
        let patch = Patch::Json::<()>(serde_json::from_value(operations)?);
        self.0.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Deletes a VM and waits until it is gone.
    ///
    /// # Errors
    ///
    /// The API's refusal, or that the VM stays.
    pub async fn delete(&self, name: &str, patience: Duration) -> Result<()> {
        self.0.delete(name, &DeleteParams::default()).await?;
        wait_for("the VM to be gone", patience, || async {
            match self.0.get_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(_)) => Err("it is there".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }
}
