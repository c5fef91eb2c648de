//! INFO: the section of regions, which only their servers have.

use ordain_conformance::reference::Server;

#[test]
fn the_section_of_regions_is_there_where_there_are_some() {
    let mut server = Server::new(1);
    assert!(!server.ask(0, &["INFO"]).contains("# Regions"));
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    server.shared.node.regions = vec![field("region", "0"), field("view1", "name=us,applied=5")];
    let shown = "# Regions\nregion:0\nview1:name=us,applied=5\n";
    assert!(server.ask(0, &["INFO"]).contains(shown));
    assert!(server.ask(0, &["INFO", "regions"]).contains(shown));
    assert!(server.ask(0, &["INFO", "everything"]).contains(shown));
    assert!(!server.ask(0, &["INFO", "stats"]).contains("# Regions"));
}
