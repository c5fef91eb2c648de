//! The loading of a workload's data, before all else that is asked for.
//!
//! A transaction of loading must take effect, once, or what follows has nothing to work on. So clients with sessions alone load:
//! they ask again until they know.

use ordain_checker::RequestId;
use ordain_model::Call;

use crate::simulator::Simulator;
use crate::system::System;

/// How far the loading is.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// All has been loaded.
    is_over: bool,
    requests: Vec<RequestId>,
}

impl Loading {
    pub(crate) fn new(loads: bool) -> Loading {
        Loading { is_over: !loads, requests: Vec::new() }
    }

    /// The number of requests of loading.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }
}

impl<S: System> Simulator<'_, S> {
    /// The requests that were made after the loading.
    pub(crate) fn asked(&self) -> u64 {
        (self.history.len() - self.loading.len()) as u64
    }

    /// What a client asks for next, and whether that loads; `None` while it waits for others to have loaded.
    pub(crate) fn make_up(&mut self, client: usize) -> Option<(Call, Vec<u8>, bool)> {
        if !self.loading.is_over && self.clients[client].session.is_some() {
            if let Some((call, args)) = self.workload.load(&mut self.random) {
                return Some((call, args, true));
            }
            let is_loaded = |id: &RequestId| !self.history.get(*id).answers.is_empty();
            self.loading.is_over = self.loading.requests.iter().all(is_loaded);
        }
        if !self.loading.is_over {
            return None;
        }
        let node = self.doors[self.clients[client].door].node;
        let (call, args) = self.workload.next_at(node, &mut self.random);
        Some((call, args, false))
    }

    /// A request of loading was sent.
    pub(crate) fn loads(&mut self, request: RequestId) {
        self.loading.requests.push(request);
    }
}
