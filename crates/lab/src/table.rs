//! Tables: one value, printed to a terminal, written to a page as HTML, and kept as JSON.

use std::fmt::{self, Write as _};

use comfy_table::{CellAlignment, ContentArrangement, presets};
use serde::Serialize;

use crate::html::escaped;
use crate::report::{extent, median};

/// A table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Names the table on a page.
    pub caption: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Column {
    name: String,
    is_number: bool,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    text: String,
    /// Behind the text, smaller: the spread of repetitions, or a share.
    #[serde(skip_serializing_if = "String::is_empty")]
    spread: String,
    kind: CellKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CellKind {
    Text,
    Number,
    Good,
    Bad,
}

impl Cell {
    fn new(kind: CellKind, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), spread: String::new(), kind }
    }

    /// Words.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::new(CellKind::Text, text)
    }

    /// A number, formatted.
    pub fn number(text: impl Into<String>) -> Cell {
        Cell::new(CellKind::Number, text)
    }

    /// The cell with a smaller text behind it.
    #[must_use]
    pub fn beside(self, spread: impl Into<String>) -> Cell {
        Cell { spread: spread.into(), ..self }
    }

    /// The median of repetitions, and how far they spread if there were several.
    pub fn median(values: &[f64], show: impl Fn(f64) -> String) -> Cell {
        let cell = Cell::number(show(median(values.iter().copied())));
        let (low, high) = extent(values.iter().copied());
        if values.len() > 1 { cell.beside(format!("{} to {}", show(low), show(high))) } else { cell }
    }

    /// A verdict, with a mark that is legible without its colour.
    pub fn verdict(good: bool, text: &str) -> Cell {
        let (kind, mark) = if good { (CellKind::Good, "\u{2713}") } else { (CellKind::Bad, "\u{2717}") };
        Cell::new(kind, format!("{mark} {text}"))
    }
}

/// A column of a table by its name and what it shows of a row.
pub struct Shows<'a, R> {
    column: Column,
    cell: Box<dyn Fn(&R) -> Cell + 'a>,
}

/// A column of words.
pub fn text<'a, R>(name: impl Into<String>, show: impl Fn(&R) -> String + 'a) -> Shows<'a, R> {
    cells(name, false, move |row| Cell::text(show(row)))
}

/// A column of numbers.
pub fn number<'a, R>(name: impl Into<String>, show: impl Fn(&R) -> String + 'a) -> Shows<'a, R> {
    cells(name, true, move |row| Cell::number(show(row)))
}

/// A column of cells of any kind.
pub fn cells<'a, R>(
    name: impl Into<String>,
    is_number: bool,
    cell: impl Fn(&R) -> Cell + 'a,
) -> Shows<'a, R> {
    Shows { column: Column { name: name.into(), is_number }, cell: Box::new(cell) }
}

impl Table {
    /// A table without columns yet.
    pub fn new(caption: &str) -> Table {
        Table { caption: caption.to_owned(), columns: Vec::new(), rows: Vec::new() }
    }

    /// A table with these columns, and a row for each item.
    pub fn of<R>(caption: &str, rows: impl IntoIterator<Item = R>, columns: Vec<Shows<'_, R>>) -> Table {
        let row = |row: R| columns.iter().map(|column| (column.cell)(&row)).collect();
        let rows = rows.into_iter().map(row).collect();
        let columns = columns.into_iter().map(|shows| shows.column).collect();
        Table { caption: caption.to_owned(), columns, rows }
    }

    /// Adds columns of words.
    #[must_use]
    pub fn text_columns(self, names: impl IntoIterator<Item = impl Into<String>>) -> Table {
        self.columns(names, false)
    }

    /// Adds columns of numbers.
    #[must_use]
    pub fn number_columns(self, names: impl IntoIterator<Item = impl Into<String>>) -> Table {
        self.columns(names, true)
    }

    fn columns(mut self, names: impl IntoIterator<Item = impl Into<String>>, is_number: bool) -> Table {
        self.columns.extend(names.into_iter().map(|name| Column { name: name.into(), is_number }));
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table, if it has rows.
    pub fn or_none(self) -> Option<Table> {
        (!self.rows.is_empty()).then_some(self)
    }

    /// The table for a terminal, its texts wrapped to the terminal's width.
    pub fn wrapped(&self) -> comfy_table::Table {
        let mut table = self.on_a_terminal();
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table
    }

    pub(crate) fn on_a_terminal(&self) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(self.columns.iter().map(|column| &column.name));
        for (column, printed) in self.columns.iter().zip(table.column_iter_mut()) {
            if column.is_number {
                printed.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in &self.rows {
            table.add_row(
                row.iter().map(|cell| format!("{}  {}", cell.text, cell.spread).trim_end().to_owned()),
            );
        }
        table
    }

    /// The table as HTML.
    pub fn html(&self) -> String {
        let mut out = String::from("<div class=\"scroll\" tabindex=\"0\"><table>\n");
        let _ = writeln!(out, "<caption>{}</caption>", escaped(&self.caption));
        out.push_str("<thead><tr>");
        for column in &self.columns {
            let class = if column.is_number { " class=\"number\"" } else { "" };
            let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escaped(&column.name));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for (i, cell) in row.iter().enumerate() {
                let class = match cell.kind {
                    CellKind::Text => "",
                    CellKind::Number => " class=\"number\"",
                    CellKind::Good => " class=\"good\"",
                    CellKind::Bad => " class=\"bad\"",
                };
                let text = escaped(&cell.text);
                let _ = match i {
                    0 => write!(out, "<th scope=\"row\"{class}>{text}</th>"),
                    _ if cell.spread.is_empty() => write!(out, "<td{class}>{text}</td>"),
                    _ => write!(out, "<td{class}>{text} <small>{}</small></td>", escaped(&cell.spread)),
                };
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
        out
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.on_a_terminal().fmt(f)
    }
}
