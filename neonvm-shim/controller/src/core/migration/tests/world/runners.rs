//! The runners of the world: they carry out orders.

use super::*;

impl World {
    /// The runners, as strict as the real ones.
    pub(super) fn order(&mut self, action: Action) -> Result<ActionResponse, Refusal> {
        let refused = |message: &str| {
            Err(Refusal::Failed {
                message: message.into(),
                permanent: false,
            })
        };
        let home = (self.home(), self.vm_phase());
        let pod = match &action {
            Action::Send { pod, .. }
            | Action::Recall { pod, .. }
            | Action::Quit { pod, .. }
            | Action::Receive { pod, .. }
            | Action::Begin { pod, .. } => pod.clone(),
            other => panic!("{other:?} is no order"),
        };
        let Some(qemu) = self.qemus.get_mut(&pod) else {
            return refused("connection refused");
        };
        if qemu.state.exit.is_some() {
            return refused("it has ended");
        }
        qemu.state.generation += 1;
        match action {
            Action::Send { order, .. } => {
                let report = qemu.state.outgoing.get_or_insert(OutgoingReport {
                    id: order.id.clone(),
                    stage: OutgoingStage::Holding,
                    shape: Some(json!({})),
                    progress: None,
                    problem: None,
                    stopped_unix_us: None,
                });
                if report.id != order.id {
                    return refused("another migration");
                }
                if order.to.is_some() && report.stage == OutgoingStage::Holding {
                    report.stage = OutgoingStage::Sending;
                }
            }
            Action::Recall { .. } => {
                assert_eq!(home, (pod, VmPhase::Running), "recalled is decided first");
                qemu.state.outgoing = None;
                qemu.runs = true;
            }
            Action::Quit { .. } => {
                let report = qemu.state.outgoing.as_ref().expect("it was sent");
                assert_eq!(report.stage, OutgoingStage::HandedOver);
                qemu.state.exit = Some(ExitReport {
                    success: true,
                    reason: ExitReason::Moved,
                    code: Some(0),
                    message: String::new(),
                });
            }
            Action::Receive { order, .. } => {
                let report = qemu.state.incoming.as_mut().expect("a target");
                report.id.clone_from(&order.id);
                self.travel = Some(order.disk);
                report.stage = match &self.refuses {
                    None => IncomingStage::Starting,
                    Some(_) => IncomingStage::Failed,
                };
                report.problem.clone_from(&self.refuses);
            }
            Action::Begin { .. } => {
                assert_eq!(home, (pod, VmPhase::Running), "begun is decided first");
                let report = qemu.state.incoming.as_mut().expect("a target");
                if report.stage == IncomingStage::Loaded {
                    report.stage = IncomingStage::Begun;
                    report.began_unix_us = Some(1_090_000);
                    qemu.runs = true;
                }
            }
            other => panic!("{other:?} is no order"),
        }
        Ok(ActionResponse::Runner(Box::new(qemu.state.clone())))
    }

    /// The world moves on by one.
    pub(super) fn turn(&mut self) -> bool {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            let pod = self.pod(&name);
            if pod.metadata.deletion_timestamp.is_some() {
                self.remove_pod(&name);
                return true;
            }
            if !pod.is_terminal() && !self.qemus.contains_key(&name) && !self.full {
                self.start_target(&name);
                return true;
            }
        }
        let Some(source) = self.qemus.get(SOURCE).cloned() else {
            return false;
        };
        let mut targets = self.qemus.iter();
        let target = targets.find(|(_, qemu)| qemu.state.incoming.is_some());
        let Some(target) = target.map(|(name, _)| name.clone()) else {
            return false;
        };
        let sends = matches!(&source.state.outgoing, Some(report) if report.stage == OutgoingStage::Sending);
        if sends {
            let qemu = self.qemus.get_mut(SOURCE).expect("it is there");
            qemu.runs = false;
            let report = qemu.state.outgoing.as_mut().expect("it sends");
            report.stage = OutgoingStage::HandedOver;
            report.stopped_unix_us = Some(1_000_000);
            report.progress = Some(Progress {
                status: "completed".into(),
                total_time_ms: 2000,
                downtime_ms: 60,
                encrypted: true,
                ..Progress::default()
            });
            qemu.state.generation += 1;
            return true;
        }
        let handed = matches!(&source.state.outgoing, Some(report) if report.stage == OutgoingStage::HandedOver);
        let qemu = self.qemus.get_mut(&target).expect("it is there");
        let report = qemu.state.incoming.as_mut().expect("a target");
        if report.stage == IncomingStage::Starting {
            report.stage = IncomingStage::Listening;
            report.destination = Some(Destination {
                encrypted: true,
                stream: "127.9.1.2:20187".parse().expect("an address"),
                disk: None,
                sockets: None,
            });
        } else if report.stage == IncomingStage::Listening && handed {
            report.stage = IncomingStage::Loaded;
        } else {
            return false;
        }
        qemu.state.generation += 1;
        true
    }

    pub(super) fn start_target(&mut self, name: &str) {
        let mut state = runner_at(250, 1);
        state.phase = RunnerPhase::Receiving;
        state.incoming = Some(IncomingReport {
            id: String::new(),
            stage: IncomingStage::Waiting,
            destination: None,
            problem: None,
            began_unix_us: None,
        });
        let pod = self.pods.get_mut(name).expect("it is there");
        pod["spec"]["nodeName"] = json!("here");
        let unready = json!([ContainerStatus {
            name: CONTAINER.into(),
            ready: false,
            ..ContainerStatus::default()
        }]);
        pod["status"] =
            json!({"phase": "Running", "podIP": "127.9.1.2", "containerStatuses": unready});
        self.touch_pod(name);
        self.qemus.insert(name.into(), Qemu { state, runs: false });
    }
}
