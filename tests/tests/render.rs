//! Settings of the image's PostgreSQL follow the VM's size, by the daemon in the guest.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellows_tests::guest::Guest;
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::runner::{ProgramFile, ProgramFileState};
use protocol::vm::VirtualMachine;

const VM: &str = "follows";
/// Longest time from an order to the setting, without KVM.
const PATIENCE: Duration = Duration::from_secs(90);
const UNIT: &str = "/etc/bellows/render.d/postgres.toml";

/// One VM of the image, which a test sizes by itself.
struct World {
    site: Site,
    guest: Guest,
    revision: i64,
}

impl World {
    async fn boot() -> Self {
        let site = Site::fresh().await.unwrap();
        let object = postgres_vm(VM, (1000, 1000, 3000), (1, 1, 4), false);
        let guest = site.boot(&object).await.unwrap();
        Self {
            site,
            guest,
            revision: 0,
        }
    }

    async fn size(&mut self, milli_cpu: u32, slots: u32) {
        self.revision += 1;
        let sized = self.site.patch_size(VM, milli_cpu, slots, self.revision);
        sized.await.unwrap();
        let memory = u64::from(slots) << 30;
        let is_there = |state: &protocol::runner::GuestState| {
            state.cpus_online == milli_cpu / 1000 && state.mem_total.0.abs_diff(memory) < 300 << 20
        };
        self.guest
            .wait("the size", PATIENCE, is_there)
            .await
            .unwrap();
    }

    /// Waits until the server's settings are those of the guest's present size.
    async fn settings_follow(&self) {
        let what = "settings of the present size";
        wait_for(what, PATIENCE + BOOT_PATIENCE, || async {
            let said = |error: anyhow::Error| format!("{error:#}");
            let state = self.guest.state().await.map_err(said)?;
            let wanted = format!(
                "{}MB {}",
                (state.mem_total.0 >> 20) * 3 / 4,
                state.cpus_online
            );
            let settings = self.settings().await.map_err(said)?;
            if settings == wanted {
                return Ok(());
            }
            Err(format!("{settings}, not {wanted}; {:?}", state.programs))
        })
        .await
        .unwrap();
    }

    /// `effective_cache_size` in MB and `max_parallel_workers`, as a new session sees them.
    async fn settings(&self) -> anyhow::Result<String> {
        let sql = "select (s.setting::bigint * 8 / 1024)::text, current_setting('max_parallel_workers') \
                   from pg_settings s where name = 'effective_cache_size'";
        let row = self.guest.postgres().await?.query_one(sql, &[]).await?;
        Ok(format!(
            "{}MB {}",
            row.get::<_, String>(0),
            row.get::<_, String>(1)
        ))
    }

    async fn run(&self, line: &str) -> String {
        self.site.ssh(VM, line, None).await.unwrap()
    }

    /// Waits for a result of the image's unit.
    async fn reported(&self, wanted: ProgramFileState) -> ProgramFile {
        let is = |file: &&ProgramFile| file.name == "postgres" && file.state == wanted;
        let what = format!("{wanted:?}");
        let waited = self.guest.wait(&what, PATIENCE, |state| {
            state.programs.iter().any(|file| is(&file))
        });
        waited
            .await
            .unwrap()
            .programs
            .into_iter()
            .find(|file| is(&file))
            .unwrap()
    }

    /// Waits until the VM's condition `Degraded` names the file, or no longer does.
    async fn degraded(&self, by: Option<&str>) {
        let message = |vm: &VirtualMachine| {
            let conditions = vm.status.iter().flat_map(|status| &status.conditions);
            let degraded = conditions.filter(|one| one.kind == "Degraded" && one.status == "True");
            degraded.map(|one| one.message.clone()).collect::<String>()
        };
        let what = format!("Degraded by {by:?}");
        let waited = self.site.wait_vm(VM, &what, PATIENCE, |vm| match by {
            Some(by) => message(vm).contains("file postgres") && message(vm).contains(by),
            None => !message(vm).contains("file postgres"),
        });
        waited.await.unwrap();
    }
}

/// Requirement: V27, V30. The setting follows the size up and down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v27_v30_settings_of_the_database_follow_the_size() {
    if !guest_or_skip("v27_v30_settings_of_the_database_follow_the_size") {
        return;
    }
    let mut world = World::boot().await;
    world.settings_follow().await;
    let started = world.run("head -n 1 /srv/pg/data/postmaster.pid").await;
    for (milli_cpu, slots) in [(3000, 4), (1000, 2)] {
        world.size(milli_cpu, slots).await;
        world.settings_follow().await;
    }
    world.reported(ProgramFileState::Current).await;
    let now = world.run("head -n 1 /srv/pg/data/postmaster.pid").await;
    assert_eq!(started, now, "the server was signalled, not restarted");
    let kept = world
        .run("ls -ln /srv/pg/data/size.conf; ls -A /srv/pg/data /var/lib/bellows/render")
        .await;
    assert!(kept.starts_with("-rw-------    1 110      110"), "{kept}");
    assert!(
        !kept.contains("bellows-new") && !kept.contains(".owed"),
        "{kept}"
    );
}

/// Requirement: V28. A broken template or a file that the server would refuse leaves the old file,
/// and the VM's condition says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v28_broken_template_leaves_the_old_file_and_a_condition() {
    if !guest_or_skip("v28_broken_template_leaves_the_old_file_and_a_condition") {
        return;
    }
    let mut world = World::boot().await;
    world.settings_follow().await;
    let before = world.settings().await.unwrap();
    world.run(&format!("cp -p {UNIT} /root/unit")).await;
    for (edit, state, said) in [
        (
            "s/{{ cpus }}/{{ cpu }}/",
            ProgramFileState::TemplateFailed,
            "undefined value",
        ),
        (
            "s/{{ cpus }}/{{ cpus/",
            ProgramFileState::Refused,
            "syntax error",
        ),
        (
            "s/{{ cpus }}/many/",
            ProgramFileState::CheckFailed,
            "contains errors",
        ),
    ] {
        world
            .run(&format!("sed '{edit}' /root/unit > {UNIT}"))
            .await;
        let file = world.reported(state).await;
        assert!(file.detail.contains(said), "{file:?}");
        world.degraded(Some(said)).await;
        assert_eq!(world.settings().await.unwrap(), before, "{edit}");
    }
    world.size(2000, 2).await;
    assert_eq!(
        world.settings().await.unwrap(),
        before,
        "the check still fails"
    );
    world.run(&format!("cp -p /root/unit {UNIT}")).await;
    world.settings_follow().await;
    world.degraded(None).await;
}

/// Requirement: V29. The daemon is killed while it works. The file is whole at each look, and its
/// successor finishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v29_killed_daemon_leaves_a_whole_file_and_its_successor_finishes() {
    if !guest_or_skip("v29_killed_daemon_leaves_a_whole_file_and_its_successor_finishes") {
        return;
    }
    let mut world = World::boot().await;
    world.settings_follow().await;
    // A watched file makes work without pause; the daemon dies in the middle of it.
    let unit = format!(
        "sed 's/^max_parallel.*/&\\n# {{{{ files.count }}}}/' {UNIT} > /root/unit && \
         printf '[files]\\ncount = {{ path = \"/root/count\" }}\\n' >> /root/unit && \
         echo 0 > /root/count && cat /root/unit > {UNIT}"
    );
    world.run(&unit).await;
    let kill = "until [ $(wc -l < /srv/pg/data/size.conf) = 4 ]; do usleep 100000; done; n=0; while [ $n -lt 12 ]; do n=$((n + 1)); echo $n > /root/count; \
                usleep $((n * 150000 + 300000)); kill -9 $(pidof neonvmd); \
                f=/srv/pg/data/size.conf; \
                [ $(wc -l < $f) = 4 ] && tail -n 1 $f | grep -q '^# [0-9]*$' || { echo torn; cat $f; }; \
                until pidof neonvmd > /dev/null; do usleep 50000; done; done; echo done";
    let said = world.run(kill).await;
    assert_eq!(said.trim(), "done");
    wait_for("the last count", PATIENCE, || async {
        let line = "tail -n 1 /srv/pg/data/size.conf; ls -A /var/lib/bellows/render /srv/pg/data";
        let said = self::run_or_say(&world, line).await?;
        let is_last = said.starts_with("# 12\n");
        let is_clean = !said.contains(".owed") && !said.contains("bellows-new");
        if is_last && is_clean {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await
    .unwrap();
    world.size(2000, 2).await;
    world.settings_follow().await;
}

async fn run_or_say(world: &World, line: &str) -> Result<String, String> {
    let said = world.site.ssh(VM, line, None).await;
    said.map_err(|error| format!("{error:#}"))
}
