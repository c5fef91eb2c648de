//! Messages between checkpointers, through their encoding.

use super::*;

#[test]
fn what_nodes_have_crosses_the_wire_and_the_rest_does_not() {
    let has = Has { saved: Epoch(7), complete: Epoch(u64::MAX) };
    let bytes = Saving::Has(has).to_bytes();
    match Saving::from_bytes(&bytes) {
        Some(Saving::Has(read)) => assert_eq!(read, has),
        other => panic!("{other:?}"),
    }
    for len in 0..bytes.len() {
        assert!(Saving::from_bytes(&bytes[..len]).is_none());
    }
    assert!(Saving::from_bytes(&[&bytes[..], &[0]].concat()).is_none());
    for here in [Saving::Last(Epoch(1)), Saving::Taken(Epoch(1)), Saving::Begun(Epoch(1))] {
        assert!(Saving::from_bytes(&here.to_bytes()).is_none());
    }
}

#[test]
fn what_crosses_between_checkpointers_is_read_as_it_was_written() {
    let part =
        |is_last| Saving::Part { epoch: Epoch(3), at: Millis(4), offset: 5, bytes: vec![6; 7], is_last };
    for saving in
        [Saving::Want { epoch: Epoch(1), offset: 2 }, part(false), part(true), Saving::Gone(Epoch(8))]
    {
        let bytes = saving.to_bytes();
        let read = Saving::from_bytes(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{saving:?}"));
        for cut in 0..bytes.len() {
            assert!(Saving::from_bytes(&bytes[..cut]).is_none(), "{saving:?} cut at {cut}");
        }
    }
}
