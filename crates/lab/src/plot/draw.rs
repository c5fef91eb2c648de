//! The SVG of a plot.
//!
//! Coordinates are whole tenths of a pixel. Inks name what they stand for: the ink of the surrounding text, a colour
//! of the palette, dashes. The palette is that of Okabe and Ito, which those who see few colours can distinguish and which is
//! legible on white and on black.

use std::fmt::Write as _;

use super::scale::{Fitted, fit};
use super::{Kind, Plot, Scale, Series, Style};
use crate::html::escaped;

/// Units of a pixel.
const UNIT: f64 = 10.0;
/// Width of a picture where there is room for it, in pixels, as are all lengths.
const WIDTH: f64 = 680.0;
const MARGIN: f64 = 14.0;
const PANEL_HEIGHT: f64 = 290.0;
/// The average width of a letter in letter heights: sans serif, rather too much than too little.
const LETTER: f64 = 0.56;
const TITLE: f64 = 16.0;
const TEXT: f64 = 13.0;
const SMALL: f64 = 11.5;

const PALETTE: [&str; 7] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A6A00"];
/// Colours of what is extrapolated, none of which a measurement has.
const EXTRAPOLATED: [&str; 4] = ["#6A51A3", "#8C6D31", "#3F7F93", "#A63D57"];
const DASHES: [&str; 4] = ["90 50", "40 35", "130 40 25 40", "20 30"];
const GREY: &str = "#808080";
/// References are grey, with different dots.
const DOTS: [&str; 3] = ["15 40", "70 35 15 35", "15 20"];

/// The colour and the dashes of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ink {
    Text,
    Soft,
    Grid,
    /// Grey, with dots of its own.
    Reference(usize),
    /// A colour of the palette.
    Solid(usize),
    /// A colour of the palette, with dashes of its own.
    Dashed(usize),
    /// A colour of what is extrapolated, with dashes of its own.
    Extrapolated(usize),
}

impl Ink {
    fn colour(self) -> &'static str {
        match self {
            Ink::Text | Ink::Soft | Ink::Grid => "currentColor",
            Ink::Reference(_) => GREY,
            Ink::Solid(i) | Ink::Dashed(i) => PALETTE[i % PALETTE.len()],
            Ink::Extrapolated(i) => EXTRAPOLATED[i % EXTRAPOLATED.len()],
        }
    }

    /// The attributes of an area or a text.
    fn fill(self) -> String {
        let opacity = if self == Ink::Soft { " fill-opacity=\"0.72\"" } else { "" };
        format!("fill=\"{}\"{opacity}", self.colour())
    }

    /// The attributes of a line.
    fn stroke(self) -> String {
        let more = match self {
            Ink::Soft => " stroke-opacity=\"0.72\"".to_owned(),
            Ink::Grid => " stroke-opacity=\"0.16\"".to_owned(),
            Ink::Reference(i) => format!(" stroke-dasharray=\"{}\"", DOTS[i % DOTS.len()]),
            Ink::Dashed(i) | Ink::Extrapolated(i) => {
                format!(" stroke-dasharray=\"{}\"", DASHES[i % DASHES.len()])
            }
            Ink::Text | Ink::Solid(_) => String::new(),
        };
        format!("stroke=\"{}\"{more}", self.colour())
    }
}

/// The elements drawn so far.
#[derive(Default)]
struct Canvas {
    svg: String,
}

type Place = (f64, f64);

fn units(length: f64) -> i32 {
    (length * UNIT).round() as i32
}

fn points(places: impl IntoIterator<Item = Place>) -> String {
    places.into_iter().map(|(x, y)| format!("{},{} ", units(x), units(y))).collect()
}

/// The anchor of a text: horizontal, and vertical.
type Anchor = (&'static str, &'static str);
const LEFT: &str = "start";
const MIDDLE: &str = "middle";
const RIGHT: &str = "end";
const BELOW: &str = "0.76em";
const BESIDE: &str = "0.5ex";
const ABOVE: &str = "-0.5ex";

impl Canvas {
    fn element(&mut self, element: &str) {
        self.svg.push_str(element);
        self.svg.push('\n');
    }

    fn line(&mut self, places: &[Place], ink: Ink, width: f64) {
        let (stroke, width, points) = (ink.stroke(), units(width), points(places.iter().copied()));
        self.element(&format!(
            "<polyline fill=\"none\" {stroke} stroke-width=\"{width}\" points=\"{points}\"/>"
        ));
    }

    fn area(&mut self, from: Place, to: Place, fill: &str) {
        let [x, y, right, bottom] = [from.0, from.1, to.0, to.1].map(units);
        let (width, height) = (right - x, bottom - y);
        let size = format!("width=\"{width}\" height=\"{height}\"");
        self.element(&format!("<rect x=\"{x}\" y=\"{y}\" {size} {fill} stroke=\"none\"/>"));
    }

    fn text(&mut self, text: &str, at: Place, size: f64, ink: Ink, anchor: Anchor) {
        self.styled(text, at, size, &ink.fill(), anchor);
    }

    fn styled(&mut self, text: &str, at: Place, size: f64, style: &str, (anchor, dy): Anchor) {
        let place =
            format!("x=\"{}\" y=\"{}\" dy=\"{dy}\" text-anchor=\"{anchor}\"", units(at.0), units(at.1));
        let font = format!("font-family=\"Helvetica, Arial, sans-serif\" font-size=\"{}\"", units(size));
        self.element(&format!("<text {place} {font} {style}>\n{}\n</text>", escaped(text)));
    }

    /// Crosses out what was measured on a disturbed machine.
    fn cross(&mut self, (x, y): Place) {
        const ARM: f64 = 7.0;
        self.line(&[(x - ARM, y - ARM), (x + ARM, y + ARM)], Ink::Text, 1.6);
        self.line(&[(x - ARM, y + ARM), (x + ARM, y - ARM)], Ink::Text, 1.6);
    }

    /// The marker of the series with this number: each has its own shape.
    fn marker(&mut self, (x, y): Place, number: usize) {
        let ink = Ink::Solid(number);
        let (fill, hollow) = (ink.fill(), format!("fill=\"none\" {} stroke-width=\"16\"", ink.stroke()));
        let around = |corners: &[Place]| points(corners.iter().map(|(dx, dy)| (x + dx, y + dy)));
        let polygon = |corners: &[Place]| format!("<polygon {fill} points=\"{}\"/>", around(corners));
        let circle = |radius: f64, style: &str| {
            format!("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" {style}/>", units(x), units(y), units(radius))
        };
        let square = [(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6), (-3.6, -3.6)];
        let element = match number % 7 {
            0 => circle(4.2, &format!("{fill} stroke=\"none\"")),
            1 => polygon(&square),
            2 => polygon(&[(0.0, -5.2), (4.8, 3.4), (-4.8, 3.4)]),
            3 => polygon(&[(0.0, -5.6), (5.6, 0.0), (0.0, 5.6), (-5.6, 0.0)]),
            4 => circle(4.0, &hollow),
            5 => format!("<polyline {hollow} points=\"{}\"/>", around(&square)),
            _ => polygon(&[(0.0, 5.2), (4.8, -3.4), (-4.8, -3.4)]),
        };
        self.element(&element);
    }
}

/// The width of a text, about.
fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER
}

/// Breaks a text into lines that fit.
fn wrap(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width_of(line, size) + width_of(word, size) + size * LETTER <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A series with the number that gives it its looks: models take those of the measured series in turn.
struct Looks<'a> {
    series: &'a Series,
    number: usize,
}

impl Looks<'_> {
    fn ink(&self) -> Ink {
        match self.series.style {
            Style::Measured => Ink::Solid(self.number),
            Style::Model => Ink::Dashed(self.number),
            Style::Extrapolated => Ink::Extrapolated(self.number),
            Style::Reference => Ink::Reference(self.number),
        }
    }

    /// Many points make a curve of their own.
    fn has_markers(&self) -> bool {
        let points = self.series.points.len();
        self.series.style == Style::Measured && points <= 40 || points == 1 && !is_line_across(self.series)
    }
}

fn looks(plot: &Plot) -> Vec<Looks<'_>> {
    let number =
        |i: usize| plot.series[..i].iter().filter(|other| other.style == plot.series[i].style).count();
    plot.series.iter().enumerate().map(|(i, series)| Looks { series, number: number(i) }).collect()
}

/// The legend: for each entry where it begins, under one another where they do not fit beside one another.
fn legend(looks: &[Looks<'_>]) -> (Vec<Place>, f64) {
    let (mut x, mut y) = (0.0, 0.0);
    let mut places = Vec::new();
    for look in looks {
        let width = SAMPLE + 6.0 + width_of(&look.series.name, TEXT) + 18.0;
        if x > 0.0 && x + width > WIDTH - 2.0 * MARGIN {
            (x, y) = (0.0, y + 19.0);
        }
        places.push((x, y));
        x += width;
    }
    (places, if looks.is_empty() { 0.0 } else { y + 19.0 })
}

/// Length of the sample of a line in the legend.
const SAMPLE: f64 = 30.0;
const BAR: f64 = 17.0;
/// Explains the cross.
const CROSSED: &str = "Crossed out: others or the host used the machine meanwhile. No verdict rests on it.";

/// Draws a plot.
pub(super) fn svg(plot: &Plot) -> String {
    let looks = looks(plot);
    let title = wrap(&plot.title, TITLE * 1.06, WIDTH - 2.0 * MARGIN);
    let subtitle = wrap(&plot.subtitle, TEXT, WIDTH - 2.0 * MARGIN);
    let crossed = plot.series.iter().any(|series| !series.disturbed.is_empty());
    let notes = plot.notes.iter().map(String::as_str).chain(crossed.then_some(CROSSED));
    let notes: Vec<String> = notes.flat_map(|note| wrap(note, SMALL, WIDTH - 2.0 * MARGIN)).collect();
    // One bar or line alone is named by the title and the axes.
    let (places, legend_height) =
        legend(if plot.kind == Kind::Bars && looks.len() < 2 { &[] } else { &looks });
    let head = MARGIN + title.len() as f64 * 21.0 + subtitle.len() as f64 * 18.0 + 6.0;
    let top = head + legend_height + if plot.kind == Kind::Bars { 8.0 } else { 36.0 };
    let panel = match plot.kind {
        Kind::Bars => bars_height(plot, &looks),
        Kind::Lines | Kind::Cdf => PANEL_HEIGHT,
    };
    let bottom = 46.0 + notes.len() as f64 * 15.0 + if notes.is_empty() { 0.0 } else { 8.0 };
    let height = (top + panel + bottom).round();
    let mut canvas = Canvas::default();
    canvas.area((0.0, 0.0), (WIDTH, height), "fill=\"#FFFFFF\" class=\"paper\"");
    let mut y = MARGIN;
    for line in &title {
        let bold = format!("{} font-weight=\"bold\"", Ink::Text.fill());
        canvas.styled(line, (MARGIN, y), TITLE, &bold, (LEFT, BELOW));
        y += 21.0;
    }
    for line in &subtitle {
        canvas.text(line, (MARGIN, y), TEXT, Ink::Soft, (LEFT, BELOW));
        y += 18.0;
    }
    for (look, (x, row)) in looks.iter().zip(&places) {
        draw_legend_entry(&mut canvas, plot.kind, look, (MARGIN + x, head + row + 9.0));
    }
    match plot.kind {
        Kind::Bars => draw_bars(&mut canvas, plot, &looks, top, panel),
        Kind::Lines | Kind::Cdf => draw_lines(&mut canvas, plot, &looks, top, panel),
    }
    for (i, line) in notes.iter().enumerate() {
        let at = (MARGIN, top + panel + 50.0 + i as f64 * 15.0);
        canvas.text(line, at, SMALL, Ink::Soft, (LEFT, BELOW));
    }
    document(plot, &canvas, height)
}

fn draw_legend_entry(canvas: &mut Canvas, kind: Kind, look: &Looks<'_>, at: Place) {
    let middle = (at.0 + SAMPLE / 2.0, at.1);
    if kind == Kind::Bars && !is_line_across(look.series) {
        canvas.area((at.0 + 8.0, at.1 - 6.0), (at.0 + SAMPLE - 4.0, at.1 + 6.0), &bar_ink(look).fill());
    } else {
        canvas.line(&[at, (at.0 + SAMPLE, at.1)], look.ink(), 2.0);
        if look.has_markers() {
            canvas.marker(middle, look.number);
        }
    }
    let text = (at.0 + SAMPLE + 6.0, at.1);
    canvas.text(&look.series.name, text, TEXT, Ink::Text, (LEFT, BESIDE));
}

/// A reference with one value holds for all of the axis.
fn is_line_across(series: &Series) -> bool {
    series.style == Style::Reference && series.points.len() == 1
}

fn values<'a>(looks: &'a [Looks<'_>]) -> impl Iterator<Item = f64> + 'a {
    looks.iter().flat_map(|look| {
        let spread = look.series.spread.iter().flatten().flat_map(|(low, high)| [*low, *high]);
        look.series.points.iter().map(|(_, y)| *y).chain(spread)
    })
}

fn draw_lines(canvas: &mut Canvas, plot: &Plot, looks: &[Looks<'_>], top: f64, height: f64) {
    let swept = looks.iter().filter(|look| !is_line_across(look.series));
    let x = fit(&plot.x.scale, swept.flat_map(|look| look.series.points.iter().map(|(x, _)| *x)), false);
    let y = fit(&plot.y.scale, values(looks), true);
    let labels: Vec<String> = y.ticks.iter().map(|tick| y.scale.label(*tick)).collect();
    let widest = labels.iter().map(|label| width_of(label, TEXT)).fold(24.0, f64::max);
    let (left, right) = (MARGIN + widest + 8.0, WIDTH - MARGIN - 12.0);
    let across = |share: f64| left + share * (right - left);
    let up = |share: f64| top + (1.0 - share) * height;

    canvas.text(&plot.y.caption(), (MARGIN, top - 10.0), TEXT, Ink::Soft, (LEFT, ABOVE));
    for (tick, label) in y.ticks.iter().zip(&labels) {
        let Some(share) = y.share(*tick) else { continue };
        canvas.line(&[(left, up(share)), (right, up(share))], Ink::Grid, 1.0);
        canvas.text(label, (left - 7.0, up(share)), TEXT, Ink::Text, (RIGHT, BESIDE));
    }
    draw_x_axis(canvas, plot.x.caption().as_str(), &x, (left, right), top + height);

    let place = |(at, value): (f64, f64)| Some((across(x.share(at)?), up(y.share(value)?)));
    let by_style = |style: Style| looks.iter().filter(move |look| look.series.style == style);
    let in_order = [Style::Reference, Style::Extrapolated, Style::Model, Style::Measured];
    let in_order = in_order.into_iter().flat_map(by_style);
    for look in in_order {
        let series = look.series;
        if is_line_across(series) {
            if let Some(share) = series.points.first().and_then(|(_, value)| y.share(*value)) {
                canvas.line(&[(left, up(share)), (right, up(share))], look.ink(), 2.0);
            }
            continue;
        }
        for ((at, _), (low, high)) in series.points.iter().zip(series.spread.iter().flatten()) {
            if let (Some(low), Some(high)) = (place((*at, *low)), place((*at, *high))) {
                let cap = |at: Place| [(at.0 - 4.0, at.1), (at.0 + 4.0, at.1)];
                canvas.line(&[low, high], Ink::Solid(look.number), 1.2);
                canvas.line(&cap(low), Ink::Solid(look.number), 1.2);
                canvas.line(&cap(high), Ink::Solid(look.number), 1.2);
            }
        }
        let places: Vec<Place> = series.points.iter().copied().filter_map(place).collect();
        if places.len() > 1 {
            canvas.line(&places, look.ink(), 2.0);
        }
        if look.has_markers() {
            places.iter().for_each(|at| canvas.marker(*at, look.number));
        }
        let crossed = series.points.iter().filter(|(x, _)| series.disturbed.contains(x));
        crossed.copied().filter_map(place).for_each(|at| canvas.cross(at));
    }
}

fn draw_x_axis(canvas: &mut Canvas, caption: &str, x: &Fitted, (left, right): (f64, f64), base: f64) {
    canvas.line(&[(left, base), (right, base)], Ink::Soft, 1.0);
    for tick in &x.ticks {
        let Some(share) = x.share(*tick) else { continue };
        let at = left + share * (right - left);
        canvas.line(&[(at, base), (at, base + 5.0)], Ink::Soft, 1.0);
        canvas.text(&x.scale.label(*tick), (at, base + 8.0), TEXT, Ink::Text, (MIDDLE, BELOW));
    }
    let middle = ((left + right) / 2.0, base + 27.0);
    canvas.text(caption, middle, TEXT, Ink::Soft, (MIDDLE, BELOW));
}

fn names(plot: &Plot) -> &[String] {
    match &plot.x.scale {
        Scale::Categories(names) => names,
        _ => &[],
    }
}

fn barred<'a>(looks: &'a [Looks<'a>]) -> impl Iterator<Item = &'a Looks<'a>> {
    looks.iter().filter(|look| !is_line_across(look.series))
}

fn group_height(looks: &[Looks<'_>]) -> f64 {
    barred(looks).count().max(1) as f64 * (BAR + 2.0) + 12.0
}

fn bars_height(plot: &Plot, looks: &[Looks<'_>]) -> f64 {
    names(plot).len().max(1) as f64 * group_height(looks)
}

fn bar_ink(look: &Looks<'_>) -> Ink {
    match look.series.style {
        Style::Reference => Ink::Soft,
        Style::Measured | Style::Model => Ink::Solid(look.number),
        Style::Extrapolated => Ink::Extrapolated(look.number),
    }
}

/// Bars lie, so that the names of settings can be read.
fn draw_bars(canvas: &mut Canvas, plot: &Plot, looks: &[Looks<'_>], top: f64, height: f64) {
    let names = names(plot);
    let length = fit(&plot.y.scale, values(looks), true);
    let widest = names.iter().map(|name| width_of(name, TEXT)).fold(0.0, f64::max).min(WIDTH * 0.4);
    let (left, right) = (MARGIN + widest + 9.0, WIDTH - MARGIN - 44.0);
    let across = |share: f64| left + share * (right - left);
    for tick in &length.ticks {
        if let Some(at) = length.share(*tick).map(across) {
            canvas.line(&[(at, top), (at, top + height)], Ink::Grid, 1.0);
        }
    }
    let group = group_height(looks);
    for (i, name) in names.iter().enumerate() {
        let middle = top + (i as f64 + 0.5) * group;
        // A name that is too long is broken, two lines at most.
        let lines = wrap(name, TEXT, widest + 1.0);
        let first = middle - (lines.len().min(2) as f64 - 1.0) * 7.5;
        for (line, text) in lines.iter().take(2).enumerate() {
            let at = (left - 8.0, first + line as f64 * 15.0);
            canvas.text(text, at, TEXT, Ink::Text, (RIGHT, BESIDE));
        }
        for (row, look) in barred(looks).enumerate() {
            let y = top + i as f64 * group + 6.0 + row as f64 * (BAR + 2.0);
            let found = look.series.points.iter().position(|(category, _)| *category == i as f64);
            let Some((number, value)) = found.map(|number| (number, look.series.points[number].1)) else {
                continue;
            };
            let Some(end) = length.share(value).map(across) else { continue };
            let zero = across(length.share(0.0).unwrap_or(0.0));
            canvas.area((zero.min(end), y), (zero.max(end), y + BAR), &bar_ink(look).fill());
            let mut beside = end;
            if let Some((low, high)) = look.series.spread.as_ref().and_then(|spread| spread.get(number))
                && let (Some(low), Some(high)) = (length.share(*low), length.share(*high))
            {
                let (low, high, mid) = (across(low), across(high), y + BAR / 2.0);
                canvas.line(&[(low, mid), (high, mid)], Ink::Text, 1.2);
                for x in [low, high] {
                    canvas.line(&[(x, mid - 4.0), (x, mid + 4.0)], Ink::Text, 1.2);
                }
                beside = beside.max(high);
            }
            if look.series.disturbed.contains(&(i as f64)) {
                canvas.cross((end, y + BAR / 2.0));
                beside = beside.max(end + 7.0);
            }
            let label = length.scale.label(value);
            canvas.text(&label, (beside + 5.0, y + BAR / 2.0), SMALL, Ink::Text, (LEFT, BESIDE));
        }
    }
    for look in looks.iter().filter(|look| is_line_across(look.series)) {
        if let Some(at) = look.series.points.first().and_then(|(_, value)| length.share(*value)).map(across) {
            canvas.line(&[(at, top), (at, top + height)], look.ink(), 2.0);
        }
    }
    canvas.line(&[(left, top), (left, top + height)], Ink::Soft, 1.0);
    draw_x_axis(canvas, &plot.y.caption(), &length, (left, right), top + height);
}

/// The document that holds what was drawn.
fn document(plot: &Plot, canvas: &Canvas, height: f64) -> String {
    let (title, description) = (escaped(&plot.title), escaped(&plot.in_words()));
    let mut svg = String::with_capacity(canvas.svg.len() + 1024);
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {} {}\" style=\"max-width:100%;height:auto\" role=\"img\" \
         color=\"#1B1F24\" stroke-linejoin=\"round\">\n<title>{title}</title>\n<desc>{description}</desc>\n\
         {}</svg>\n",
        WIDTH * UNIT,
        height * UNIT,
        canvas.svg,
    );
    svg
}
