//! A guest under load moves to another runner image by a real migration, where the setting allows
//! it. An image that cannot start moves nobody.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use test_records::retry::Attempts;

use super::images::{Images, RUNNER};
use super::server::Server;
use super::{GOOD, NAMESPACE, PATIENCE, ROLLOUT, VMS, World, guest_program, rights, sha256_of, vm};

/// The guest that moves.
const MOVED: &str = VMS[0];
/// The guest that stays.
const KEPT: &str = VMS[1];
/// Another one after each boot.
const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
/// Sessions of the guest's database, without a connection from outside.
const LOAD: &str = "PATH=$PATH:/usr/lib/postgresql/15/bin; cd /root; \
     sh -c 'trap \"\" HUP; exec pgbench -h /tmp -U postgres -n -c 1 -R 5 -T 100000 bench' >load.log 2>&1 </dev/null & \
     echo $! >/root/load.pid";
/// Prints the number of transactions while the load runs.
const DONE: &str = "kill -0 $(cat /root/load.pid) && \
     psql -h /tmp -U postgres -Atc 'select count(*) from pgbench_history' bench";

/// A guest and where it runs.
#[derive(Debug, PartialEq)]
struct GuestState {
    pod: String,
    boot: String,
    image: Value,
}

/// Settings that bring an image to all guests at once.
fn runners(image: &str, version: &str) -> Value {
    json!({"schedules": true, "runners": {
        "image": image, "version": version, "critical": true, "withoutKvm": true,
    }})
}

fn pinned(digest: &str) -> String {
    format!("bellows/{RUNNER}@{digest}")
}

impl World {
    pub(super) fn vm(&self, name: &str) -> Result<Value> {
        self.get(&["neonvm", name])
    }

    pub(super) async fn guest_says(&self, name: &str, command: &str) -> Result<String> {
        let what = format!("the guest of {name}");
        let says = || self.cluster.guest(&self.vm(name)?, command).map(Some);
        self.until(&what, PATIENCE, says).await
    }

    async fn state_of(&self, name: &str) -> Result<GuestState> {
        let boot = self.guest_says(name, BOOT_ID).await?;
        let vm = self.vm(name)?;
        let pod = vm["status"]["podName"].as_str().context("a pod")?;
        Ok(GuestState {
            pod: pod.to_owned(),
            boot,
            image: vm["spec"]["runnerImage"].clone(),
        })
    }

    fn names(&self, words: &[&str]) -> Result<Vec<String>> {
        let text = self.kubectl(&[&["get", "-o", "name", "-n", NAMESPACE], words].concat())?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Waits for the end of a guest's move to an image.
    async fn move_ended(&self, name: &str, image: &str) -> Result<Value> {
        let instance = format!("vm-{name}");
        let what = format!("the end of a move of {name} to {image}");
        self.until(&what, ROLLOUT, || {
            let end = self.get(&["fleetinstance", &instance])?["status"]["runner"].clone();
            // The migration is deleted after its end is written.
            let is_left = !self.names(&["neonvmm"])?.is_empty();
            Ok((end["to"] == image && !is_left).then_some(end))
        })
        .await
    }

    fn enroll(&self, name: &str, word: &str) -> Result<()> {
        let label = format!("fleet.bellows.dev/enrolled{word}");
        self.kubectl(&["label", "--overwrite", "neonvm", name, &label])
            .map(drop)
    }

    async fn load_goes_on(&self, name: &str) -> Result<()> {
        let before: u64 = self.guest_says(name, DONE).await?.parse()?;
        self.until("the load inside to go on", PATIENCE, || {
            let done: u64 = self.cluster.guest(&self.vm(name)?, DONE)?.parse()?;
            Ok((done > before).then_some(()))
        })
        .await?;
        let log = self.guest_says(name, "cat /root/load.log").await?;
        ensure!(!log.contains("aborted") && !log.contains("error"), "{log}");
        Ok(())
    }
}

/// Again with a new guest where QEMU without KVM broke the first one.
pub(super) async fn guest_gets_another_runner(world: &World, server: &Server) -> Result<()> {
    let images = Images::load(world, RUNNER)?;
    nobody_moves_without_the_setting(world)?;
    let mut attempts = Attempts::of("guest_gets_another_runner");
    loop {
        let ended = guest_moves(world, server, &images.good).await;
        let broken = || world.cluster.known_panic(MOVED);
        let panic = ended.as_ref().err().and_then(|_| broken());
        if !attempts.again(panic) {
            ended?;
            break;
        }
        world.deploy_fleet(&server.authority, &json!({})).await?;
        world.kubectl(&["delete", "neonvm", MOVED, "--timeout=120s"])?;
        world.apply(&vm(MOVED))?;
    }
    image_that_cannot_start_moves_nobody(world, server, &images.bad).await
}

/// The log has each call since the fleet began.
fn nobody_moves_without_the_setting(world: &World) -> Result<()> {
    let calls = rights::calls(world)?;
    let mut of_moves = calls.iter().filter(|call| {
        let is_vm = call.resource == "virtualmachines";
        call.resource == "virtualmachinemigrations" || is_vm && call.verb != "list"
    });
    let found = of_moves.next();
    ensure!(found.is_none(), "{found:?}: moves are off");
    Ok(())
}

/// One guest moves under load. The other one is kept out by its label.
async fn guest_moves(world: &World, server: &Server, digest: &str) -> Result<()> {
    world.enroll(KEPT, "=false")?;
    let (before, stays) = (world.state_of(MOVED).await?, world.state_of(KEPT).await?);
    world.guest_says(MOVED, LOAD).await?;
    world.load_goes_on(MOVED).await?;
    let image = pinned(digest);
    let settings = runners(&image, "0.2.0");
    world.deploy_fleet(&server.authority, &settings).await?;
    let end = world.move_ended(MOVED, &image).await?;
    ensure!(end["result"] == "Good", "{end}");

    let after = world.state_of(MOVED).await?;
    ensure!(
        after.boot == before.boot,
        "{before:?} {after:?}: it started again"
    );
    ensure!(
        after.pod != before.pod && after.image == *image,
        "{after:?}"
    );
    let pods = world.names(&["pods", "-l", &format!("vm.neon.tech/name={MOVED}")])?;
    ensure!(
        pods == [format!("pod/{}", after.pod)],
        "{pods:?}: the old one is away"
    );
    let words = ["exec", &after.pod, "-c", RUNNER, "--", "cat", "/etc/mark"];
    let mark = world.kubectl(&words)?;
    ensure!(
        mark == "another image",
        "{mark}: the pod is of the other image"
    );
    world.load_goes_on(MOVED).await?;
    // What a rollout brought comes along.
    world
        .until("the monitor", PATIENCE, || {
            let sha256 = sha256_of(&guest_program(GOOD.1)?);
            Ok((world.monitor(MOVED)? == sha256).then_some(()))
        })
        .await?;
    let kept = world.state_of(KEPT).await?;
    ensure!(kept == stays, "{stays:?} {kept:?}: it was kept out");
    Ok(())
}

/// The pod of the target ends. The guest stays where it is, and the field is put back.
async fn image_that_cannot_start_moves_nobody(
    world: &World,
    server: &Server,
    digest: &str,
) -> Result<()> {
    // The fleet that runs would move it to the image of before.
    world.stop_fleet()?;
    world.enroll(KEPT, "-")?;
    let (moved, before) = (world.state_of(MOVED).await?, world.state_of(KEPT).await?);
    let image = pinned(digest);
    let settings = runners(&image, "0.2.1");
    world.deploy_fleet(&server.authority, &settings).await?;
    let end = world.move_ended(KEPT, &image).await?;
    ensure!(end["result"] == "Bad", "{end}");
    let after = world.state_of(KEPT).await?;
    ensure!(after == before, "{before:?} {after:?}: {end}");
    ensure!(after.image.is_null(), "{after:?}: the field is put back");
    let now = world.state_of(MOVED).await?;
    ensure!(
        now == moved,
        "{moved:?} {now:?}: the image comes to no other"
    );
    Ok(())
}
