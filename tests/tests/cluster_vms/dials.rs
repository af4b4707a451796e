//! Requirement: N49. Our pods open only the connections that `docs/reference/ports.md` lists, and
//! no other port of theirs is connected to.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::checkout;
use bellows_tests::cluster::{Dial, End};
use bellows_tests::patience::wait_for;

use super::{PATIENCE, World};

/// The node's runtime serves `kubectl port-forward` and connects inside the pod. Cases use it for
/// ssh, and for the state of agents and schedulers.
const FORWARDED: [Dial; 3] = [
    Dial {
        who: End::Vm,
        whom: End::Vm,
        port: 22,
    },
    Dial {
        who: End::Agent,
        whom: End::Agent,
        port: 9100,
    },
    Dial {
        who: End::Scheduler,
        whom: End::Scheduler,
        port: 9100,
    },
];
/// Connections in every cluster with an autoscaled VM. Without them the table is not tested.
const ALWAYS: [(End, End, Option<u16>); 9] = [
    (End::Controller, End::ApiServer, None),
    (End::Scheduler, End::ApiServer, None),
    (End::Agent, End::ApiServer, None),
    (End::Agent, End::Scheduler, Some(10299)),
    (End::Agent, End::Vm, Some(10301)),
    (End::Agent, End::Vm, Some(9100)),
    (End::Controller, End::Vm, Some(25183)),
    (End::Vm, End::Vm, Some(25184)),
    (End::Scheduler, End::Scheduler, Some(10298)),
];

/// A line of the table. `who` is empty for foreign clients.
#[derive(Debug)]
struct Line {
    who: Vec<End>,
    whom: End,
    port: u16,
}

impl Line {
    /// Parses the cells of a line. `None` if the line is about programs in the network of their
    /// node or of a person's machine, which are not observed.
    fn read(cells: &[&str]) -> Result<Option<Self>> {
        let [who, whom, port, ..] = cells else {
            anyhow::bail!("{cells:?} are too few");
        };
        let who = match who.split([' ', ',']).next() {
            Some("all") => vec![End::Controller, End::Scheduler, End::Agent],
            Some("controller") => vec![End::Controller],
            Some("kube-scheduler") => vec![End::Scheduler],
            Some("agent") => vec![End::Agent],
            Some("policy") => vec![End::PolicyController],
            Some("fleet") => vec![End::Fleet],
            Some("runner") => vec![End::Vm],
            Some("API" | "a" | "kubelet" | "who") => Vec::new(),
            Some("nodes" | "`bellows") => return Ok(None),
            other => anyhow::bail!("who is {other:?}?"),
        };
        let whom = match whom.split([' ', ',']).next() {
            Some("API") => End::ApiServer,
            Some("controller" | "controller's") => End::Controller,
            Some("scheduler" | "kube-scheduler" | "extender") => End::Scheduler,
            Some("agent" | "agent's") => End::Agent,
            Some("policy") => End::PolicyController,
            Some("fleet") => End::Fleet,
            Some("monitor" | "runner" | "the" | "guest's") => End::Vm,
            Some("guest" | "guests") => End::Guest,
            Some("vxlan" | "`bellows") => return Ok(None),
            other => anyhow::bail!("whom is {other:?}?"),
        };
        let port = port.parse().with_context(|| format!("{port} is no port"))?;
        Ok(Some(Self { who, whom, port }))
    }

    /// Whether the line allows a connection. A cluster's API server has its own port. Pods that
    /// connect to another node use the address of their own node, so only the port is compared.
    fn allows(&self, dial: &Dial) -> bool {
        let is_who = match dial.who {
            End::Other(_) => true,
            End::ApiServer => self.who.is_empty(),
            who => self.who.contains(&who),
        };
        let is_port = self.whom == End::ApiServer || self.port == dial.port;
        is_who && is_port && self.whom == dial.whom
    }
}

fn table() -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(checkout().join("docs/reference/ports.md"))?;
    let (_, section) = text
        .split_once("\n## Who dials whom\n")
        .context("the section is there")?;
    let section = section.split("\n## ").next().unwrap_or(section);
    let rows = section.lines().filter(|line| line.starts_with("| "));
    // The first is the head.
    let mut lines = Vec::new();
    for row in rows.skip(1) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        lines.extend(Line::read(&cells)?);
    }
    Ok(lines)
}

pub(super) async fn check(world: &World) -> Result<()> {
    let table = table()?;
    world.vm().await?;
    world.mode("full")?;
    world.is_sized(true)?;
    wait_for("the connections there always are", PATIENCE, || async {
        let seen = world.dials.seen();
        let is_seen = |(who, whom, port): &(End, End, Option<u16>)| {
            let mut seen = seen.iter();
            seen.any(|it| {
                it.who == *who && it.whom == *whom && port.is_none_or(|port| port == it.port)
            })
        };
        let missing: Vec<_> = ALWAYS.iter().filter(|it| !is_seen(it)).collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("{missing:?} of {seen:?}"))
        }
    })
    .await?;
    world.is_sized(false)?;
    let seen = world.dials.seen();
    let is_allowed =
        |dial: &&Dial| FORWARDED.contains(dial) || table.iter().any(|it| it.allows(dial));
    let strange: BTreeSet<&Dial> = seen.iter().filter(|dial| !is_allowed(dial)).collect();
    ensure!(
        strange.is_empty(),
        "not in the table: {strange:?}; all: {seen:?}"
    );
    Ok(())
}
