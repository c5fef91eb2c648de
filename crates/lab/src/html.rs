//! Pages: a report that is one file.
//!
//! A [`Page`] holds everything itself, style and pictures, runs no script and loads nothing, so that it can
//! be mailed, archived and opened in ten years. It follows the reader's choice of light or dark, prints on white with
//! its sections kept together, and on a phone a wide table scrolls in its own box. Every text is escaped where it is
//! written, and nowhere else.

use std::fmt::Write;
use std::time::SystemTime;

use crate::demand;
use crate::host::Host;
use crate::plot::{Plot, si};
use crate::report::{Report, demands_of, runs_table};
use crate::table::Table;

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// The paragraph below the heading.
    pub lead: String,
    /// Facts of the machine and the version, as name and value.
    pub facts: Vec<(String, String)>,
    /// The commands that make it again.
    pub commands: Vec<String>,
    /// The content.
    pub sections: Vec<Section>,
}

/// A section of a page.
#[derive(Clone, Debug)]
pub struct Section {
    /// The name in links.
    pub id: String,
    /// The heading.
    pub title: String,
    /// The content, from above.
    pub blocks: Vec<Block>,
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// A picture.
    Plot(Plot),
    /// A table.
    Table(Table),
    /// Points of a list.
    Notes(Vec<String>),
}

impl Page {
    /// The page as a file.
    pub fn html(&self) -> String {
        let mut out = String::with_capacity(64 << 10);
        let title = escaped(&self.title);
        let _ = write!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{title}</h1>\n"
        );
        if !self.lead.is_empty() {
            let _ = writeln!(out, "<p class=\"lead\">{}</p>", escaped(&self.lead));
        }
        out.push_str("<dl>\n");
        for (name, value) in &self.facts {
            let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
        }
        out.push_str("</dl>\n");
        if !self.commands.is_empty() {
            let commands =
                self.commands.iter().map(|command| escaped(command)).collect::<Vec<_>>().join("\n");
            let _ = writeln!(out, "<p>Made by:</p>\n<pre><code>{commands}</code></pre>");
        }
        out.push_str("</header>\n");
        if self.sections.len() > 3 {
            out.push_str("<nav aria-label=\"Contents\"><ul>\n");
            for section in &self.sections {
                let (id, title) = (escaped(&section.id), escaped(&section.title));
                let _ = writeln!(out, "<li><a href=\"#{id}\">{title}</a></li>");
            }
            out.push_str("</ul></nav>\n");
        }
        for section in &self.sections {
            section.write(&mut out);
        }
        out.push_str("</main>\n</body>\n</html>\n");
        out
    }
}

impl Section {
    /// A section without anything in it.
    pub fn new(id: &str, title: &str) -> Section {
        Section { id: id.to_owned(), title: title.to_owned(), blocks: Vec::new() }
    }

    fn write(&self, out: &mut String) {
        let (id, title) = (escaped(&self.id), escaped(&self.title));
        let _ = writeln!(out, "<section id=\"{id}\">\n<h2>{title}</h2>");
        for block in &self.blocks {
            match block {
                Block::Text(text) => {
                    let _ = writeln!(out, "<p>{}</p>", escaped(text));
                }
                Block::Plot(plot) => {
                    let _ = writeln!(out, "<figure class=\"scroll\">\n{}</figure>", plot.svg());
                }
                Block::Table(table) => out.push_str(&table.html()),
                Block::Notes(notes) => {
                    out.push_str("<ul>\n");
                    for note in notes {
                        let _ = writeln!(out, "<li>{}</li>", escaped(note));
                    }
                    out.push_str("</ul>\n");
                }
            }
        }
        out.push_str("</section>\n");
    }
}

/// A text as it must be written in HTML, XML and their attributes.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars().map(allowed) {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

/// A letter, or the sign for one that no document may hold, escaped or not.
pub(crate) fn allowed(letter: char) -> char {
    let forbidden =
        letter.is_control() && !matches!(letter, '\n' | '\t') || matches!(letter, '\u{fffe}' | '\u{ffff}');
    if forbidden { '\u{fffd}' } else { letter }
}

/// The facts of every page: version, machine and day.
pub fn facts(version: &str, host: &Host, date: &str) -> Vec<(String, String)> {
    let memory = format!("{:.1} GiB", host.memory_bytes as f64 / f64::from(1 << 30));
    let cpu = if host.cpu.is_empty() { "unknown" } else { host.cpu.as_str() };
    [
        ("version", format!("ordain {version}")),
        ("processor", cpu.to_owned()),
        ("cores", host.cores.to_string()),
        ("memory", memory),
        ("date", date.to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The day, in UTC.
pub fn today() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    day(since.as_secs() / 86_400)
}

/// The day so many days after 1 January 1970, by the Gregorian calendar (Hinnant's `civil_from_days`).
fn day(days: u64) -> String {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The page of `ordain bench … --report FILE`.
pub fn bench_page(report: &Report, plots: &[Plot], command: &str) -> String {
    let failed = report.runs.iter().filter(|run| !run.passed()).count();
    let mut results = Section::new("results", "Results");
    results.blocks.extend(plots.iter().cloned().map(Block::Plot));
    if !report.runs.is_empty() {
        let caption = "Every setting: the median of its repetitions";
        results.blocks.push(Block::Table(runs_table(caption, &report.runs, si)));
    }
    let mut sections = vec![results];
    let demands = demands_of(&report.runs);
    if !demands.is_empty() {
        let mut section = Section::new("demands", "Where the time goes");
        section.blocks.push(Block::Text(
            "What each part of the node needs for a transaction, measured. X(c) = min(1 / largest demand of a single thread, \
             c / sum of demands) is extrapolated from that for other machines, and not measured: an upper bound."
                .to_owned(),
        ));
        section.blocks.push(Block::Table(demand::table(&demands)));
        sections.push(section);
    }
    if let Some(table) = report.machine_table(si) {
        let mut section = Section::new("machine", "The machine");
        section.blocks.push(Block::Table(table));
        sections.push(section);
    }
    let lead = if failed == 0 {
        format!("{} runs; every check of the data that they left behind passed.", report.runs.len())
    } else {
        format!("{failed} of {} runs failed their checks: their figures are no results.", report.runs.len())
    };
    let free = report.runs.iter().filter(|run| run.disturbance.is_free()).count();
    let page = Page {
        title: "Ordain: benchmark".to_owned(),
        lead: format!("{lead} {free} of {} runs had the machine to themselves.", report.runs.len()),
        facts: facts(report.version, &report.host, &today()),
        commands: vec![command.to_owned()],
        sections,
    };
    page.html()
}

/// One sheet for the screen, the dark, the phone and the printer.
const STYLE: &str = include_str!("html/page.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Cell;

    fn page() -> Page {
        let mut table = Table::new("Medians").text_columns(["engine"]).number_columns(["txn/s"]);
        table = table.text_columns(["checks"]);
        table.row(vec![
            Cell::text("<calvin>"),
            Cell::median(&[100e3, 300e3, 200e3], si),
            Cell::verdict(true, "3 passed"),
        ]);
        table.row(vec![Cell::text("b"), Cell::median(&[5.0], si), Cell::verdict(false, "failed: sums")]);
        let blocks = vec![
            Block::Text("a < b & c".to_owned()),
            Block::Table(table),
            Block::Notes(vec!["'quoted' \"twice\"".to_owned()]),
        ];
        Page {
            title: "T & co".to_owned(),
            lead: "<script>alert(1)</script>".to_owned(),
            facts: vec![("date".to_owned(), "2026-11-22".to_owned())],
            commands: vec!["ordain bench ycsb --json 'a b.json'".to_owned()],
            sections: vec![Section { id: "one".to_owned(), title: "One".to_owned(), blocks }],
        }
    }

    #[test]
    fn everything_is_escaped_and_nothing_comes_from_elsewhere() {
        let html = page().html();
        assert!(html.contains("&lt;script&gt;alert(1)") && !html.contains("<script"), "{html}");
        assert!(html.contains("a &lt; b &amp; c") && html.contains("&#39;quoted&#39; &quot;twice&quot;"));
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert_eq!(escaped("\u{1b}[0m"), "\u{fffd}[0m");
    }

    #[test]
    fn a_table_tells_spread_and_verdict_without_colour() {
        let html = page().html();
        assert!(html.contains("<td class=\"number\">200 K <small>100 K to 300 K</small></td>"), "{html}");
        assert!(html.contains("<td class=\"good\">\u{2713} 3 passed</td>"));
        assert!(html.contains("<td class=\"bad\">\u{2717} failed: sums</td>"));
        assert!(html.contains("<th scope=\"row\">&lt;calvin&gt;</th>"));
    }

    #[test]
    fn it_fits_phones_printers_and_the_dark() {
        let html = page().html();
        assert!(html.contains("name=\"viewport\" content=\"width=device-width, initial-scale=1\""));
        for rule in ["prefers-color-scheme: dark", "@media print", "overflow-x: auto", "break-inside: avoid"]
        {
            assert!(html.contains(rule), "{rule}");
        }
    }

    #[test]
    fn a_page_is_well_formed_xml_too() {
        // All but what HTML writes without an end.
        let html = page().html().replace("<!DOCTYPE html>", "");
        let mut xml = String::new();
        for line in html.lines() {
            let meta = line.starts_with("<meta");
            xml.push_str(&if meta { line.replace('>', "/>") } else { line.to_owned() });
        }
        roxmltree::Document::parse(&xml).unwrap();
    }

    #[test]
    fn days_are_days() {
        let days = [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_779, "2026-11-22")];
        for (number, name) in days {
            assert_eq!(day(number), name);
        }
    }

    #[test]
    fn a_small_page_is_written_as_it_was() {
        let html = page().html();
        let body = html.split_once("<body>").map(|(_, body)| body).unwrap();
        insta::assert_snapshot!(body);
    }
}
