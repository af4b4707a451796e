//! Replicas of the controller: one works, and another takes over when it ends.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use bellows_tests::api::{Api, Flavour};
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::program;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use nix::sys::signal::Signal;

/// A Lease here lasts 4 s; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: &str = "a3b22509.neon.tech";

struct Replicas {
    api: Api,
    leases: kube::Api<Lease>,
    pods: kube::Api<Pod>,
    logs: tempfile::TempDir,
}

impl Replicas {
    fn start(&self, name: &str) -> Process {
        let mut command = Command::new(program("neonvm-controller"));
        command
            .args(["--runner-image", "runner:test", "--listen", "127.0.0.1:0"])
            .args(["--leader-elect", "--leader-election-lease-duration", "4s"])
            .args(["--lease-namespace", &self.api.namespace])
            .arg("--state-dir")
            .arg(self.logs.path())
            .env("KUBECONFIG", self.api.kubeconfig());
        let log = File::create(self.logs.path().join(name)).unwrap();
        Process::start(&mut command, log).unwrap()
    }

    /// Waits until that one leads.
    async fn led_by(&self, replica: &Process) {
        let mark = format!("_{}-", replica.pid());
        let led = wait_for("another leader", PATIENCE, || async {
            let lease = self.leases.get_opt(LEASE).await;
            let lease = lease
                .map_err(|error| error.to_string())?
                .unwrap_or_default();
            let holder = lease.spec.unwrap_or_default().holder_identity;
            match holder.unwrap_or_default() {
                holder if holder.contains(&mark) => Ok(()),
                other => Err(format!("{other:?} leads")),
            }
        });
        led.await.unwrap();
    }

    /// A new VM gets its one pod.
    async fn is_worked_for(&self, vm: &str) {
        let file = self.api.file(vm, &self.api.vm(vm).to_string()).unwrap();
        self.api.kubectl(&["apply", "-f", &file]).unwrap();
        let made = wait_for("a pod", PATIENCE, || async {
            match self.pods_of(vm).await? {
                0 => Err("none yet".to_owned()),
                count => Ok(count),
            }
        });
        assert_eq!(made.await.unwrap(), 1);
    }

    async fn pods_of(&self, vm: &str) -> Result<usize, String> {
        let mine = ListParams::default().labels(&format!("vm.neon.tech/name={vm}"));
        let list = self.pods.list(&mine).await;
        Ok(list.map_err(|error| error.to_string())?.items.len())
    }
}

/// A leader that ends hands over, one that is killed or stops for a while is replaced, and one that
/// comes back after that ends by itself. No VM ever has two pods.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_controller_works_and_another_takes_over() {
    let test = "one_controller_works_and_another_takes_over";
    let api = Api::start_or_skip(Flavour::Embedded, test).await;
    let Some(api) = api.unwrap() else {
        return;
    };
    let client = api.client().await.unwrap();
    let replicas = Replicas {
        leases: kube::Api::default_namespaced(client.clone()),
        pods: kube::Api::default_namespaced(client),
        api,
        logs: tempfile::tempdir().unwrap(),
    };
    let mut first = replicas.start("first");
    replicas.led_by(&first).await;
    let second = replicas.start("second");
    replicas.is_worked_for("one").await;

    first.terminate().unwrap();
    replicas.led_by(&second).await;
    replicas.is_worked_for("two").await;
    let ended = wait_for("the end of the first", PATIENCE, || {
        let code = first.exit_code().unwrap();
        async move { code.ok_or_else(|| "it runs".to_owned()) }
    });
    assert_eq!(ended.await.unwrap(), 0);

    let mut third = replicas.start("third");
    second.signal(Signal::SIGKILL).unwrap();
    replicas.led_by(&third).await;
    replicas.is_worked_for("three").await;

    let fourth = replicas.start("fourth");
    third.signal(Signal::SIGSTOP).unwrap();
    replicas.led_by(&fourth).await;
    replicas.is_worked_for("four").await;
    third.signal(Signal::SIGCONT).unwrap();
    let ended = wait_for("the end of the third", PATIENCE, || {
        let code = third.exit_code().unwrap();
        async move { code.ok_or_else(|| "it runs".to_owned()) }
    });
    assert_eq!(ended.await.unwrap(), 75, "its supervisor starts it anew");
    for vm in ["one", "two", "three", "four"] {
        assert_eq!(replicas.pods_of(vm).await, Ok(1), "{vm}");
    }
}
