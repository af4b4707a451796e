//! Starts QEMU for a VM that boots here, or for a guest that is to arrive.

use std::fs::File;
use std::os::fd::OwnedFd;

use nix::fcntl::Flock;
use tokio::process::Child;
use tracing::info;

use super::Runner;
use crate::accel::{self, knowledge};
use crate::config::{Accel, AccelChoice};
use crate::core::args::qemu_args;
use crate::core::claims::FIRST_FILE;
use crate::core::connection::{Connection, connection};
use crate::core::disks::{self, Drive};
use crate::core::forwards;
use crate::core::nic;
use crate::core::shape::{self, Shape};
use crate::core::transfer::Manifest;
use crate::shell::claims::{self, OpenDisks};
use crate::shell::process::{self, ProcessId};
use crate::shell::record::{Record, write_json};
use crate::shell::run_error::RunError;
use crate::shell::{bridge, console, disk, drives, guestd_key, overlay, passt, root_disk, walls};

/// Prefix of QEMU's cgroup below the runner's own, before the pod's name
/// (docs/compatibility/neonvm.md §3.5).
const OWN_GROUP: &str = "neonvm-qemu-";

impl Runner {
    /// Starts a new QEMU. Locks on the VM's disks are added to `held`.
    pub(super) async fn start(
        &self,
        held: &mut Vec<Flock<File>>,
    ) -> Result<(Record, Option<Child>), RunError> {
        let config = &self.config;
        let accel = self.accel().await;
        let blind = knowledge::is_blind(&config.knowledge_dir, &config.image.kernel_version, accel);
        let control = shape::control(config.spec.cpu_scaling_mode, blind);
        let shape = shape::shape(&config.spec.guest, control, accel)?;
        let key = self.paths.guestd_key();
        let key = guestd_key::make(&key).map_err(|error| RunError::GuestdKey(key, error))?;
        let ssh = config.ssh_public_key.as_deref();
        let plan = disks::plan(&config.spec, ssh, Some(&key))?
            .with_monitor_token(drives::monitor_token(&self.paths)?.as_deref());
        let queues = nic::queues(&shape, None);
        bridge::prepare(config, None, queues).await?;
        overlay::prepare(config.overlay.as_ref(), queues).await?;
        let OpenDisks { files, locks } = claims::open(config, &plan, self.clock.wall()).await?;
        held.extend(locks);
        match &config.root_overlay {
            _ if config.root_is_claimed() => {}
            Some(path) => root_disk::open(config, path).await?,
            None => disk::make_overlay(config, &self.paths.root_disk(config)).await?,
        }
        let drives = drives::make_all(config, &self.paths, &plan).await?;
        self.launch(self.new_record(accel, shape, drives), None, files)
            .await
    }

    pub(super) async fn accel(&self) -> Accel {
        let (config, qemu) = (&self.config, &self.config.programs.qemu_system);
        let knowledge = Some(config.knowledge_dir.as_path());
        let resolved = if config.spec.enable_acceleration {
            accel::resolve(config.accel, qemu, knowledge).await
        } else {
            accel::resolve(AccelChoice::Tcg, qemu, None).await
        };
        resolved.accel
    }

    pub(super) fn new_record(&self, accel: Accel, shape: Shape, drives: Vec<Drive>) -> Record {
        let config = &self.config;
        Record {
            host_boot_id: process::host_boot_id(),
            qemu: None,
            passt: None,
            walls: Vec::new(),
            accel,
            budget: shape.budget,
            shape,
            started_unix_us: self.clock.wall().0,
            boot_ms: None,
            drives,
            order: None,
            orders: 0,
            stop_ordered: false,
            cgroup: if config.cgroup_in_own {
                Some(format!("{OWN_GROUP}{}", config.pod))
            } else {
                let parent = config.cgroup_parent.as_ref();
                parent.map(|parent| format!("{parent}/{}_{}", config.namespace, config.pod))
            },
            leaving: None,
            arrival: None,
            moved: false,
        }
    }

    pub(super) async fn launch(
        &self,
        mut record: Record,
        from: Option<&Manifest>,
        files: Vec<OwnedFd>,
    ) -> Result<(Record, Option<Child>), RunError> {
        let (console, guest) = (self.paths.console_log(), self.paths.guest_log());
        let passt_log = self.paths.passt_log();
        for log in [console, guest, self.paths.qemu_log(), passt_log] {
            console::prepare(&log).map_err(|error| RunError::Dir(log, error))?;
        }
        let config = &self.config;
        let connection = connection(config, from);
        let input = self.connect(&mut record, connection).await?;
        let (enclosure, walls) =
            walls::choose(config, connection, &self.paths, &record.drives).await;
        record.walls = walls;
        // Before QEMU: the next runner must know what kind of QEMU it may find.
        write_json(&self.paths.record(), &record)?;
        let accel = record.accel;
        let args = qemu_args(
            config,
            &record.shape,
            accel,
            &self.paths,
            &record.drives,
            from,
        );
        let serves = matches!(connection, Connection::UserNetwork);
        let qemu = enclosure.command(&config.programs.qemu_system, args);
        let start = process::Start {
            program: &qemu.file,
            args: &qemu.args,
            env: &qemu.env,
            sandbox: enclosure.sandbox(),
            dir: &self.paths.dir,
            log: &self.paths.qemu_log(),
            input,
            files: files.into_iter().zip(FIRST_FILE..).collect(),
            low_ports: serves
                && forwards::needs_privilege(config, from, process::first_free_port()),
        };
        let child =
            process::start(start).map_err(|error| RunError::Qemu(qemu.file.clone(), error))?;
        record.qemu = child.id().and_then(ProcessId::of);
        write_json(&self.paths.record(), &record)?;
        info!(pid = child.id(), accel = accel.as_str(), "QEMU started");
        Ok((record, Some(child)))
    }

    /// Starts the network process of a guest that is connected by passt. Returns QEMU's standard
    /// input.
    async fn connect(
        &self,
        record: &mut Record,
        connection: Connection<'_>,
    ) -> Result<Option<OwnedFd>, RunError> {
        let Connection::Passt(walls) = connection else {
            return Ok(None);
        };
        let started = passt::start(&self.config, walls, &self.paths).await?;
        record.passt = started.process;
        Ok(Some(started.listener))
    }
}
