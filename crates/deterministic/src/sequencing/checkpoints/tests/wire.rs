//! Messages between checkpointers, through their encoding.

use super::*;

#[test]
fn what_nodes_have_crosses_the_wire_and_the_rest_does_not() {
    let registry = Registry::default();
    let encode = |message: &Message<Nothing>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    };
    let has = Has { saved: Epoch(7), complete: Epoch(u64::MAX) };
    let bytes = encode(&Saving::Has(has).into());
    match Message::<Nothing>::decode(&registry, &bytes) {
        Some(Message::Saving(Saving::Has(read))) => assert_eq!(read, has),
        other => panic!("{other:?}"),
    }
    for len in 0..bytes.len() {
        assert!(Message::<Nothing>::decode(&registry, &bytes[..len]).is_none());
    }
    assert!(Message::<Nothing>::decode(&registry, &[&bytes[..], &[0]].concat()).is_none());
    for here in [Saving::Last(Epoch(1)), Saving::Taken(Epoch(1)), Saving::Begun(Epoch(1))] {
        assert!(Message::<Nothing>::decode(&registry, &encode(&here.into())).is_none());
    }
}

/// An engine that says nothing.
#[derive(Debug)]
enum Nothing {}

impl Wire for Nothing {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &Registry, _: &[u8]) -> Option<Nothing> {
        None
    }
}

#[test]
fn what_crosses_between_checkpointers_is_read_as_it_was_written() {
    let registry = Registry::default();
    let part =
        |is_last| Saving::Part { epoch: Epoch(3), at: Millis(4), offset: 5, bytes: vec![6; 7], is_last };
    for saving in
        [Saving::Want { epoch: Epoch(1), offset: 2 }, part(false), part(true), Saving::Gone(Epoch(8))]
    {
        let mut bytes = Vec::new();
        let message: Message<Nothing> = saving.into();
        message.encode(&mut bytes);
        let read = Message::<Nothing>::decode(&registry, &bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{message:?}"));
        for cut in 0..bytes.len() {
            assert!(
                Message::<Nothing>::decode(&registry, &bytes[..cut]).is_none(),
                "{message:?} cut at {cut}"
            );
        }
    }
}
