//! Messages between checkpointers, through their encoding.

use super::*;

/// An engine without messages of its own.
type NoMessage = Message<()>;

#[test]
fn what_nodes_have_crosses_the_wire_and_the_rest_does_not() {
    let encode = |message: NoMessage| message.to_bytes();
    let has = Has { saved: Epoch(7), complete: Epoch(u64::MAX) };
    let bytes = encode(Saving::Has(has).into());
    match NoMessage::from_bytes(&bytes) {
        Some(Message::Saving(Saving::Has(read))) => assert_eq!(read, has),
        other => panic!("{other:?}"),
    }
    for len in 0..bytes.len() {
        assert!(NoMessage::from_bytes(&bytes[..len]).is_none());
    }
    assert!(NoMessage::from_bytes(&[&bytes[..], &[0]].concat()).is_none());
    for here in [Saving::Last(Epoch(1)), Saving::Taken(Epoch(1)), Saving::Begun(Epoch(1))] {
        assert!(NoMessage::from_bytes(&encode(here.into())).is_none());
    }
}

#[test]
fn what_crosses_between_checkpointers_is_read_as_it_was_written() {
    let part =
        |is_last| Saving::Part { epoch: Epoch(3), at: Millis(4), offset: 5, bytes: vec![6; 7], is_last };
    for saving in
        [Saving::Want { epoch: Epoch(1), offset: 2 }, part(false), part(true), Saving::Gone(Epoch(8))]
    {
        let message: NoMessage = saving.into();
        let bytes = message.to_bytes();
        let read = NoMessage::from_bytes(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{message:?}"));
        for cut in 0..bytes.len() {
            assert!(NoMessage::from_bytes(&bytes[..cut]).is_none(), "{message:?} cut at {cut}");
        }
    }
}
