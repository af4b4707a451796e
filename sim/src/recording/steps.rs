//! Records each step of each agent task.

use agent::core::Event;
use agent::core::journal::{Output, Recorder, settings};
use protocol::journal::{FORMAT, Head, NodeState, Record};
use protocol::time::{Span, Timestamp};

use super::TaskRecorder;
use crate::agent::tasks::config;
use crate::world::{UNIT, World};

impl World {
    /// Keeps the journals of all tasks that begin from now on.
    pub fn record(&mut self) {
        let now = self.now.0;
        let head = Head {
            build: "sim".into(),
            cu: UNIT.into(),
            node: "all".into(),
            part: "agent".into(),
            prev: None,
            run: self.options.seed,
            seq: 1,
            t: now,
            v: FORMAT,
            wall: 0,
        };
        let node = NodeState {
            core: Some(settings(&config(Span(0)))),
            engine: None,
            scheduler: None,
            t: now,
        };
        self.recording = Some(vec![Record::Head(head), Record::Node(node)]);
    }

    /// What was recorded.
    pub fn recorded(&mut self) -> Vec<Record> {
        for vm in 0..self.vms.len() {
            self.end_recording(vm);
        }
        self.recording.take().unwrap_or_default()
    }

    /// A task's pen, if its journal is kept.
    pub(crate) fn recorder(&self, agent_task: u64) -> Option<TaskRecorder> {
        self.recording.as_ref()?;
        let number = u32::try_from(agent_task).unwrap_or(u32::MAX);
        Some(TaskRecorder {
            inner: Recorder::new(number, UNIT),
            last: Timestamp::default(),
            steps: 0,
        })
    }

    /// Records what the core of a VM is about to be fed; returns the time of this step.
    pub(crate) fn record_event(&mut self, vm: usize, event: &Event) -> Timestamp {
        let now = self.now;
        let (Some(recording), Some(agent_task)) =
            (&mut self.recording, self.vms[vm].agent_task.as_mut())
        else {
            return now;
        };
        let Some(mut recorder) = agent_task.recorder.take() else {
            return now;
        };
        let now = now.max(recorder.last + Span(1));
        recorder.last = now;
        recorder.event(now, event, &agent_task.core, recording);
        agent_task.recorder = Some(recorder);
        now
    }

    /// Records what the step gave.
    pub(crate) fn record_output(&mut self, vm: usize, output: &Output) {
        let (Some(recording), Some(agent_task)) =
            (&mut self.recording, self.vms[vm].agent_task.as_mut())
        else {
            return;
        };
        if let Some(recorder) = &mut agent_task.recorder {
            recorder.inner.output(recorder.last, output, recording);
        }
    }

    /// A task ends by itself.
    pub(crate) fn end_recording(&mut self, vm: usize) {
        let (Some(recording), Some(agent_task)) =
            (&mut self.recording, self.vms[vm].agent_task.as_mut())
        else {
            return;
        };
        if let Some(mut recorder) = agent_task.recorder.take() {
            recorder.inner.flush(recording);
        }
    }
}
