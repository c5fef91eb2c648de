//! The network edge of a node of a run: the product's own, metered, and further away from some nodes than from others.
//!
//! The product's edge can hold back everything that leaves, alike for all peers. Experiments with replicas in regions
//! need more between replicas than inside one, so what goes further waits here first. To each peer the same is added
//! every time, so the order in which a role sends to another stays what it was.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use mio::Registry;
use ordain_family::Message;
use ordain_model::Micros;
use ordain_role::{Event, NodeId, Now, Outbox, Role, TimerId};
use ordain_runtime::{Departing, Edge, Network, Tokens, Turn};

use crate::meter::Meter;

/// The parts of a [`Remote`].
pub(super) struct RemoteParts<M: Message> {
    pub network: Network<M>,
    /// Further delay of what goes to a node.
    pub delays: BTreeMap<NodeId, Micros>,
    pub meter: Meter,
}

/// See the module.
pub(super) struct Remote<M: Message> {
    parts: RemoteParts<M>,
    waiting: BTreeMap<NodeId, VecDeque<(Micros, Departing<M>)>>,
    due: Option<Micros>,
}

/// No timer of the edge's own has it.
const LATER: TimerId = TimerId(u32::MAX);

impl<M: Message> Remote<M> {
    pub fn new(parts: RemoteParts<M>) -> Self {
        Remote { parts, waiting: BTreeMap::new(), due: None }
    }

    fn metered<R>(&mut self, work: impl FnOnce(&mut Network<M>) -> R) -> R {
        let RemoteParts { network, meter, .. } = &mut self.parts;
        meter.time(|| work(network))
    }

    /// Hands on what has waited long enough.
    fn release(&mut self, now: Now, out: &mut Outbox<M>) {
        self.due = None;
        let due: Vec<_> = self
            .waiting
            .values_mut()
            .flat_map(|queue| {
                let ready = queue.partition_point(|(at, _)| *at <= now.elapsed);
                queue.drain(..ready).map(|(_, departing)| departing).collect::<Vec<_>>()
            })
            .collect();
        for departing in due {
            self.metered(|network| network.depart(departing, now, out));
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        if let Some(next) = self.waiting.values().filter_map(|queue| queue.front()).map(|(at, _)| *at).min() {
            self.wake_at(next, now, out);
        }
    }

    fn wake_at(&mut self, at: Micros, now: Now, out: &mut Outbox<M>) {
        if self.due.is_none_or(|due| at < due) {
            self.due = Some(at);
            out.set_timer(LATER, at.since(now.elapsed));
        }
    }
}

impl<M: Message> Role for Remote<M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        if matches!(event, Event::Timer(LATER)) {
            self.release(now, out);
        } else {
            self.metered(|network| network.handle(now, event, out));
        }
    }

    fn name(&self) -> &'static str {
        self.parts.network.name()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        self.parts.network.gauges(report);
    }
}

impl<M: Message> Edge for Remote<M> {
    fn register(&mut self, registry: Registry, tokens: Tokens) -> io::Result<()> {
        self.parts.network.register(registry, tokens)
    }

    fn ready(&mut self, event: &mio::event::Event, now: Now, out: &mut Outbox<M>) {
        self.metered(|network| network.ready(event, now, out));
    }

    fn turn(&mut self, now: Now, out: &mut Outbox<M>) -> Turn {
        self.metered(|network| network.turn(now, out))
    }

    fn flush(&mut self, now: Now, out: &mut Outbox<M>) {
        self.metered(|network| network.flush(now, out));
    }

    fn stop(&mut self, now: Now, out: &mut Outbox<M>) {
        self.metered(|network| network.stop(now, out));
    }

    fn depart(&mut self, departing: Departing<M>, now: Now, out: &mut Outbox<M>) {
        match self.parts.delays.get(&departing.to.node) {
            None => self.metered(|network| network.depart(departing, now, out)),
            Some(delay) => {
                let at = now.elapsed.plus(*delay);
                self.waiting.entry(departing.to.node).or_default().push_back((at, departing));
                self.wake_at(at, now, out);
            }
        }
    }

    fn drained(&self) -> bool {
        self.parts.network.drained()
    }
}
