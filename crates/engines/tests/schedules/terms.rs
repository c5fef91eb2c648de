//! A participant by hand, between terms: what its log and its manager say of them comes in any order.

use std::sync::Arc;

use ordain_commit::{CommitEngine, Content, Entry, Holding, Message, Own, Participant, Term};
use ordain_model::Options;
use ordain_model::{Epoch, Layout, Millis, Registry};
use ordain_replication::Log;
use ordain_role::{Address, Bugs, Event, NodeId, Now, Outbox, Role as _};

use crate::ENGINES;

const MANAGER: Address = Address { node: NodeId(0), role: 0 };

struct Hand(Participant);

impl Hand {
    fn new(engine: CommitEngine) -> Hand {
        let control = (engine.control)(&Options::default(), Bugs::NONE);
        let layout = Arc::new(Layout::single(1));
        Hand(Participant::new(Holding::of_shard(layout, 0), MANAGER, Arc::new(Registry::default()), control))
    }

    /// Has it take a message; answers the terms in which it says that it serves.
    fn tell(&mut self, message: impl Into<Message>) -> Vec<Term> {
        let mut out = Outbox::default();
        self.0.handle(Now::default(), Event::Message { from: MANAGER, message: message.into() }, &mut out);
        assert_eq!((out.halt, self.0.check()), (None, Ok(())));
        let ready = out.sends.into_iter().filter_map(|(_, message)| match message {
            Message::Own(Own::Ready(term)) => Some(term),
            _ => None,
        });
        ready.collect()
    }

    /// A term begins in the log.
    fn begin(&mut self, place: u64, term: u64) -> Vec<Term> {
        let (place, term, content) = (Epoch(place), Term(term), Content::Begin);
        self.tell(Log::Sealed(Arc::new(Entry { place, term, now: Millis(0), content, agreed: None })))
    }
}

/// Found by seeds of two partitions with three members: a former leader that is reached again may hear of the next term's entries
/// before it hears that its own is over, or has begun.
#[test]
fn nobody_serves_in_a_term_behind_which_a_later_one_has_begun() {
    for engine in ENGINES {
        let mut hand = Hand::new(engine);
        assert_eq!(hand.begin(1, 1), []);
        assert_eq!(hand.tell(Own::Serve(Term(1), Epoch(1))), [Term(1)]);
        assert_eq!(hand.begin(2, 2), [], "it stands");
        assert_eq!(hand.tell(Own::Stand), []);
        assert_eq!(hand.tell(Own::Serve(Term(3), Epoch(3))), [], "not before it has applied that");
        assert_eq!(hand.begin(4, 4), [], "another has begun");
        assert_eq!(hand.tell(Own::Serve(Term(5), Epoch(5))), []);
        assert_eq!(hand.begin(5, 5), [Term(5)]);
    }
}
