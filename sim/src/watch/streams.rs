//! Streams begin, break, and bring lists and changes to their readers.

use protocol::time::{Span, Timestamp};

use super::{RELIST_PAUSE, node_of};
use crate::event::{Event, Reader};
use crate::faults::Link;
use crate::journal::Part;
use crate::store::{Change, Kind, Object};
use crate::world::World;

impl World {
    /// The streams of a part begin: with a list each, and no earlier than after `wait`.
    pub(crate) fn open_streams(&mut self, part: Part, wait: Span) {
        let kinds: &[Kind] = match part {
            Part::Scheduler(_) => &[Kind::Node, Kind::Pod, Kind::Vm],
            Part::Controller => &[Kind::Vm, Kind::Pod],
            _ => &[Kind::Vm],
        };
        for kind in kinds {
            self.restart_stream(Reader { part, kind: *kind }, wait);
        }
    }

    /// The streams of a part that is gone end.
    pub(crate) fn close_streams(&mut self, part: Part) {
        for (reader, stream) in &mut self.streams {
            if reader.part == part {
                stream.epoch += 1;
                stream.live = false;
            }
        }
    }

    /// A stream breaks; what was on its way is lost, and the reader lists again.
    pub(crate) fn restart_stream(&mut self, reader: Reader, wait: Span) {
        let stream = self.streams.entry(reader).or_default();
        stream.epoch += 1;
        stream.live = false;
        stream.last = self.now;
        let epoch = stream.epoch;
        self.after(wait, Event::Relist(reader, epoch));
    }

    fn is_current(&self, reader: Reader, epoch: u64) -> bool {
        self.streams
            .get(&reader)
            .is_some_and(|stream| stream.epoch == epoch)
            && self.is_up(reader.part)
    }

    pub(crate) fn relist(&mut self, reader: Reader, epoch: u64) {
        if !self.is_current(reader, epoch) {
            return;
        }
        if self.fault_schedule.api_is_away(self.now) {
            let pause = self.rng.span(RELIST_PAUSE.0, RELIST_PAUSE.1);
            return self.after(pause, Event::Relist(reader, epoch));
        }
        let objects: Vec<Object> = self
            .store
            .all(reader.kind)
            .filter(|object| self.concerns(reader, object))
            .cloned()
            .collect();
        let at = self.arrival_time(reader);
        if let Some(stream) = self.streams.get_mut(&reader) {
            stream.live = true;
        }
        let version = self.store.version();
        self.put(at, Event::Listed(reader, epoch, version, objects));
    }

    /// An agent reads all VMs and lets go of those of other nodes; here it is not even shown them.
    fn concerns(&self, reader: Reader, object: &Object) -> bool {
        match reader.part {
            Part::Agent(node) => node_of(object) == Some(node),
            _ => true,
        }
    }

    fn arrival_time(&mut self, reader: Reader) -> Timestamp {
        let delay = self
            .delivery(Link::Watch)
            .first()
            .unwrap_or(Span::from_millis(1));
        let now = self.now;
        let Some(stream) = self.streams.get_mut(&reader) else {
            return now;
        };
        let at = (now + delay).max(stream.last).max(stream.stalled_until);
        stream.last = at;
        at
    }

    /// Tells every reader of what changed in this step.
    pub(crate) fn tell_changes(&mut self) {
        while let Some(change) = self.store.next_change() {
            self.truth_of(&change);
            self.node_works(&change);
            let mut readers: Vec<Part> = (0..self.schedulers.len()).map(Part::Scheduler).collect();
            if change.kind != Kind::Node {
                readers.push(Part::Controller);
            }
            if change.kind == Kind::Vm {
                readers.extend(self.agents_of(&change.object));
            }
            for part in readers {
                self.tell(
                    Reader {
                        part,
                        kind: change.kind,
                    },
                    change.clone(),
                );
            }
        }
    }

    /// The agents that hear of a VM: that of its node, and that which has it in hand still.
    fn agents_of(&self, object: &Object) -> Vec<Part> {
        let vm = self.vm_named(object.meta("name"));
        let held = vm.and_then(|vm| {
            self.vms[vm]
                .agent_task
                .as_ref()
                .map(|agent_task| agent_task.node)
        });
        let mut nodes: Vec<usize> = node_of(object).into_iter().chain(held).collect();
        nodes.dedup();
        nodes.into_iter().map(Part::Agent).collect()
    }

    fn tell(&mut self, reader: Reader, change: Change) {
        let Some(stream) = self
            .streams
            .get(&reader)
            .copied()
            .filter(|stream| stream.live)
        else {
            return;
        };
        if self.rng.chance(self.rates.gap) {
            self.tally.count("watch gap");
            let pause = self.rng.span(RELIST_PAUSE.0, RELIST_PAUSE.1);
            return self.restart_stream(reader, pause);
        }
        let at = self.arrival_time(reader);
        self.put(at, Event::Seen(reader, stream.epoch, change));
    }

    pub(crate) fn seen(&mut self, reader: Reader, epoch: u64, change: Change) {
        if !self.is_current(reader, epoch) {
            return;
        }
        match reader.part {
            Part::Scheduler(replica) => self.scheduler_sees(replica, &change),
            Part::Controller => self.controller_sees(&change),
            Part::Agent(node) => self.agent_sees(node, &change.object, change.gone),
            Part::Runner(_) | Part::Monitor(_) => {}
        }
    }

    pub(crate) fn listed(&mut self, reader: Reader, epoch: u64, version: u64, objects: &[Object]) {
        if !self.is_current(reader, epoch) {
            return;
        }
        match reader.part {
            Part::Scheduler(replica) => {
                self.scheduler_lists(replica, reader.kind, objects, version);
            }
            Part::Controller => self.controller_lists(reader.kind, objects),
            Part::Agent(node) => self.agent_lists(node, objects),
            Part::Runner(_) | Part::Monitor(_) => {}
        }
    }
}
