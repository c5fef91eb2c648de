//! The clients' side of the simulator: what happens at the front doors.

use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::{Call, Front, Gsn, Micros, OutcomeBatch, OutcomeStatus, SessionId};

use crate::check::{Violation, ViolationKind};
use crate::client::{Client, Waiter};
use crate::history::RequestId;
use crate::simulator::{Happening, Simulator};
use crate::system::System;

impl<S: System> Simulator<'_, S> {
    pub(crate) fn add_clients(&mut self) {
        for number in 0..self.config.clients {
            let door = number as usize % self.doors.len().max(1);
            let session = self.random.chance(self.config.session_chance);
            let (session, lanes) = match session {
                true => (Some(SessionId(u64::from(number) + 1)), self.config.session_lanes),
                false => (None, self.config.lanes),
            };
            self.clients.push(Client::new(door, session, lanes.max(1)));
        }
    }

    /// Whether a client waits for an answer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.clients.iter().any(|client| client.lanes.iter().any(Option::is_some))
    }

    pub(crate) fn reconnect_clients(&mut self, node: usize) {
        for client in 0..self.clients.len() {
            if self.doors[self.clients[client].door].node.0 as usize == node {
                let delay = self.random.tail(2_000);
                self.after(delay, Happening::Reconnect { client });
            }
        }
    }

    pub(crate) fn disconnect_clients(&mut self, node: usize) {
        for client in &mut self.clients {
            if self.doors[client.door].node.0 as usize == node {
                client.connected = false;
                if client.session.is_none() {
                    // Nobody will ever know what became of these.
                    client.lanes.fill(None);
                }
            }
        }
    }

    pub(crate) fn reconnect(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let node = self.doors[client.door].node;
        if client.connected || !self.nodes[node.0 as usize].up {
            return;
        }
        client.connected = true;
        self.change_door(number);
        for request in self.clients[number].waiting() {
            self.resend(number, request);
        }
        for lane in 0..self.clients[number].lanes.len() {
            if self.clients[number].lanes[lane].is_none() {
                self.think_soon(number, lane);
            }
        }
    }

    /// The client's next connection is at any door of its node.
    fn change_door(&mut self, client: usize) {
        let node = self.doors[self.clients[client].door].node;
        let doors: Vec<usize> = (0..self.doors.len()).filter(|d| self.doors[*d].node == node).collect();
        self.clients[client].door = doors[self.random.index(doors.len())];
    }

    fn think_soon(&mut self, client: usize, lane: usize) {
        let delay = self.random.tail(self.config.think_us_max);
        self.after(delay, Happening::Think { client, lane });
    }

    pub(crate) fn think(&mut self, number: usize, lane: usize) {
        let client = &mut self.clients[number];
        let enough = self.history.len() as u64 >= self.config.txns;
        if self.healed || enough || !client.connected || client.lanes[lane].is_some() {
            return;
        }
        let (mut call, args) = self.workload.next(&mut self.random);
        call.session = client.number();
        let request = self.history.sent(self.now, call, args);
        client.lanes[lane] = Some(request);
        self.submit(Some(number), request);
    }

    fn resend(&mut self, client: usize, request: RequestId) {
        self.history.sent_again(request);
        self.submit(Some(client), request);
    }

    pub(crate) fn resend_rejected(&mut self, number: usize, request: RequestId, attempt: u32) {
        if self.is_latest(number, request, attempt) && self.clients[number].connected {
            self.resend(number, request);
        }
    }

    pub(crate) fn lose_patience(&mut self, number: usize, request: RequestId, attempt: u32) {
        if self.healed || !self.is_latest(number, request, attempt) || !self.clients[number].connected {
            return;
        }
        self.trace.note(self.now, format_args!("client {number} drops its connection"));
        self.change_door(number);
        for request in self.clients[number].waiting() {
            self.resend(number, request);
        }
    }

    /// Whether a client waits for just this attempt at a request.
    fn is_latest(&self, client: usize, request: RequestId, attempt: u32) -> bool {
        self.clients[client].lane_of(request).is_some() && self.history.get(request).attempts == attempt
    }

    /// Asks the state's digest at a node's first door, for the driver itself.
    pub(crate) fn probe(&mut self, node: usize, call: Call) -> RequestId {
        let mut args = Vec::new();
        ArgsBuilder::new(&mut args);
        let request = self.history.sent(self.now, call, args);
        self.submit_at(node * usize::from(self.config.doors), None, request);
        request
    }

    /// Sends a probe again that was rejected.
    pub(crate) fn probe_again(&mut self, node: usize, request: RequestId) {
        self.history.sent_again(request);
        self.submit_at(node * usize::from(self.config.doors), None, request);
    }

    fn submit(&mut self, client: Option<usize>, request: RequestId) {
        let Some(number) = client else { return };
        self.submit_at(self.clients[number].door, client, request);
        let attempt = self.history.get(request).attempts;
        let has_session = self.clients[number].session.is_some();
        if has_session && self.random.chance(self.intensity.impatience_chance) {
            let patience = self.random.tail(20_000);
            self.after(patience, Happening::Impatient { client: number, request, attempt });
        }
    }

    fn submit_at(&mut self, number: usize, client: Option<usize>, request: RequestId) {
        let door = &mut self.doors[number];
        let asked = self.history.get(request);
        let (call, args, attempt) = (asked.call, asked.args.clone(), asked.attempts);
        self.trace.note(
            self.now,
            format_args!("ask {} attempt {attempt} door {number} {call:?} {args:02x?}", request.0),
        );
        let waiter = Waiter { request, client, attempt };
        let ticket = door.ticket(waiter);
        let write = |out: &mut ArgsBuilder<'_>| {
            Args::parse(&args).into_iter().flatten().for_each(|arg| _ = out.push(arg.bytes));
        };
        match door.gateway.submit(ticket, call, write) {
            Ok(()) => self.flush_soon(number),
            Err(refusal) => {
                door.redeem(ticket);
                let reply = refusal.to_string();
                self.answer(waiter, OutcomeStatus::Refused, Gsn::NONE, reply.as_bytes());
            }
        }
    }

    fn flush_soon(&mut self, number: usize) {
        let door = &mut self.doors[number];
        if !door.flushing {
            door.flushing = true;
            let life = self.nodes[door.node.0 as usize].incarnation;
            let delay = self.random.tail(self.intensity.local_delay_us_max);
            self.after(delay, Happening::Flush { door: number, life });
        }
    }

    pub(crate) fn flush(&mut self, number: usize) {
        let door = &mut self.doors[number];
        door.flushing = false;
        let place = door.place;
        while let Some((_, chunk)) = self.doors[number].gateway.flush() {
            self.send(place.address, place.engine, Front::Submit(chunk).into());
        }
    }

    pub(crate) fn take_outcomes(&mut self, number: usize, batch: &OutcomeBatch) {
        let door = &mut self.doors[number];
        let mut finished = Vec::new();
        door.gateway.take_outcomes(batch, |f| finished.push((f.ticket, f.status, f.gsn, f.reply.to_vec())));
        for (ticket, status, gsn, reply) in finished {
            if let Some(waiter) = self.doors[number].redeem(ticket) {
                self.answer(waiter, status, gsn, &reply);
            }
        }
        self.flush_soon(number);
    }

    fn answer(&mut self, waiter: Waiter, status: OutcomeStatus, gsn: Gsn, reply: &[u8]) {
        let Waiter { request, client, attempt } = waiter;
        self.trace.note(
            self.now,
            format_args!("answer {} attempt {attempt} {status:?} {gsn} {reply:02x?}", request.0),
        );
        self.history.answered(request, status, gsn, reply);
        let Some(number) = client else { return };
        // An answer to an attempt whose connection was dropped is noted, but reaches nobody.
        if !self.is_latest(number, request, attempt) {
            return;
        }
        let Some(lane) = self.clients[number].lane_of(request) else { return };
        if status == OutcomeStatus::Superseded {
            // Its session has not gone on: this is the request that it waits for.
            let text = "a request was called superseded although its session waits for it";
            return self.fail(Violation::new(ViolationKind::AcknowledgedLost, text).of(request));
        }
        let rejected = matches!(status, OutcomeStatus::Busy | OutcomeStatus::Refused);
        if rejected && self.clients[number].session.is_some() {
            let pause = 100 + self.random.tail(10_000);
            self.after(pause, Happening::Resend { client: number, request, attempt });
            return;
        }
        self.clients[number].lanes[lane] = None;
        // One that was turned away does not come back at once.
        let pause = if rejected { Micros(100 + self.random.tail(10_000)) } else { Micros(0) };
        let delay = pause.plus(Micros(self.random.tail(self.config.think_us_max)));
        self.after(delay.0, Happening::Think { client: number, lane });
    }
}
