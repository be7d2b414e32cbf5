//! The messages of a file and the footer, and the bodies that messages describe.
//!
//! Source: Arrow's `Schema.fbs`, `Message.fbs` and `File.fbs`; `arrow-ipc` has the types that are generated from them.
//! A body need not be there: a message says only where its buffers are. Each buffer of a body is aligned, and so is the
//! body itself.

use std::sync::Arc;

use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::writer::DictionaryTracker;
use arrow_ipc::{
    Block, Buffer, DictionaryBatchBuilder, FieldNode, FooterBuilder, MessageBuilder, MessageHeader,
    MetadataVersion, RecordBatchBuilder,
};
use arrow_schema::Schema;
use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, WIPOffset};

use npyfs_io::content::{Content, InMemory};

/// What a file begins and ends with.
const MAGIC: &[u8] = b"ARROW1";

/// Bytes that bodies and buffers begin at a multiple of.
const ALIGNMENT: u64 = 64;

/// The same for large ones, which have pages of their own: a page that two columns share would be decoded from both.
const PAGE: u64 = 4096;
const LARGE: u64 = 64 << 10;

/// Returns what a body or a buffer of some length begins and ends at a multiple of.
fn alignment(length: u64) -> u64 {
    match length {
        LARGE.. => PAGE,
        _ => ALIGNMENT,
    }
}

/// What a message says of the arrays in its body.
#[derive(Default)]
pub(super) struct Arrays {
    /// The number of elements of each array, and how many are missing.
    nodes: Vec<(u64, u64)>,
    /// Where each buffer begins in the body, and its length.
    buffers: Vec<(u64, u64)>,
    /// The number of buffers of data of each array of views.
    variadic: Vec<u64>,
    /// The length of the body.
    pub(super) body: u64,
}

/// The arrays of one batch, and the contents of their buffers.
#[derive(Default)]
pub(super) struct Body {
    pub(super) arrays: Arrays,
    pub(super) parts: Vec<Arc<dyn Content>>,
}

impl Body {
    /// Adds an array, whose buffers follow.
    pub(super) fn node(&mut self, length: u64, missing: u64) {
        self.arrays.nodes.push((length, missing));
    }

    /// Adds a buffer without bytes.
    pub(super) fn no_buffer(&mut self) {
        self.arrays.buffers.push((self.arrays.body, 0));
    }

    /// Adds a buffer.
    pub(super) fn buffer(&mut self, content: Arc<dyn Content>) {
        let length = content.len();
        self.pad(alignment(length));
        self.arrays.buffers.push((self.arrays.body, length));
        self.arrays.body = self.arrays.body.saturating_add(length);
        self.parts.push(content);
        self.pad(alignment(length));
    }

    /// Adds zeros up to a multiple.
    fn pad(&mut self, multiple: u64) {
        let end = self.arrays.body;
        let padding = end.checked_next_multiple_of(multiple).unwrap_or(end) - end;
        self.arrays.body = end.saturating_add(padding);
        // Less than a page.
        self.parts
            .push(Arc::new(InMemory(vec![0; padding as usize])));
    }

    /// Adds the buffers of data of an array of views.
    pub(super) fn buffers(&mut self, contents: Vec<Arc<dyn Content>>) {
        self.arrays.variadic.push(contents.len() as u64);
        contents
            .into_iter()
            .for_each(|content| self.buffer(content));
    }
}

/// Where a message is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The offset in the file.
    pub(super) at: u64,
    /// The length of the message, without its body.
    pub(super) metadata: u64,
    /// The length of the body.
    pub(super) body: u64,
}

/// Returns the beginning of a file.
pub(super) fn head() -> Vec<u8> {
    [MAGIC, &[0; 2]].concat()
}

/// Returns the message of the schema, at an offset in the file.
pub(super) fn schema(schema: &Schema, at: u64) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let header = encoded(schema, &mut builder).as_union_value();
    framed(builder, (MessageHeader::Schema, header), 0, at)
}

/// Returns the message of a batch of rows, at an offset in the file.
pub(super) fn batch(length: u64, arrays: &Arrays, at: u64) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let header = record_batch(length, arrays, &mut builder).as_union_value();
    framed(
        builder,
        (MessageHeader::RecordBatch, header),
        arrays.body,
        at,
    )
}

/// Returns the message of the values of a dictionary, at an offset in the file.
pub(super) fn dictionary(id: u64, length: u64, arrays: &Arrays, at: u64) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let data = record_batch(length, arrays, &mut builder);
    let mut dictionary = DictionaryBatchBuilder::new(&mut builder);
    dictionary.add_id(signed(id));
    dictionary.add_data(data);
    let header = dictionary.finish().as_union_value();
    framed(
        builder,
        (MessageHeader::DictionaryBatch, header),
        arrays.body,
        at,
    )
}

/// Returns the end of a file, behind its last body.
pub(super) fn tail(schema: &Schema, dictionaries: &[Place], batches: &[Place]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let blocks = |places: &[Place]| -> Vec<Block> {
        let block = |place: &Place| {
            // A message is smaller than 2 GiB, or `framed` would have failed.
            let metadata = i32::try_from(place.metadata).unwrap_or(i32::MAX);
            Block::new(signed(place.at), metadata, signed(place.body))
        };
        places.iter().map(block).collect()
    };
    let schema = encoded(schema, &mut builder);
    let dictionaries = builder.create_vector(&blocks(dictionaries));
    let batches = builder.create_vector(&blocks(batches));
    let mut footer = FooterBuilder::new(&mut builder);
    footer.add_version(MetadataVersion::V5);
    footer.add_schema(schema);
    footer.add_dictionaries(dictionaries);
    footer.add_recordBatches(batches);
    let footer = footer.finish();
    builder.finish(footer, None);
    let footer = builder.finished_data();
    let length = u32::try_from(footer.len()).unwrap_or(u32::MAX);
    // The end of the messages stands before it.
    let end = [[0xff; 4], [0; 4]].concat();
    [&end[..], footer, &length.to_le_bytes(), MAGIC].concat()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn encoded<'a>(
    schema: &Schema,
    builder: &mut FlatBufferBuilder<'a>,
) -> WIPOffset<arrow_ipc::Schema<'a>> {
    // Numbers dictionaries in the order of their columns.
    let mut tracker = DictionaryTracker::new(false);
    IpcSchemaEncoder::new()
        .with_dictionary_tracker(&mut tracker)
        .schema_to_fb_offset(builder, schema)
}

fn record_batch<'a>(
    length: u64,
    arrays: &Arrays,
    builder: &mut FlatBufferBuilder<'a>,
) -> WIPOffset<arrow_ipc::RecordBatch<'a>> {
    let nodes = arrays.nodes.iter();
    let nodes: Vec<_> = nodes
        .map(|&(length, missing)| FieldNode::new(signed(length), signed(missing)))
        .collect();
    let buffers = arrays.buffers.iter();
    let buffers: Vec<_> = buffers
        .map(|&(at, length)| Buffer::new(signed(at), signed(length)))
        .collect();
    let variadic: Vec<_> = arrays.variadic.iter().map(|&count| signed(count)).collect();
    let nodes = builder.create_vector(&nodes);
    let buffers = builder.create_vector(&buffers);
    let variadic = (!variadic.is_empty()).then(|| builder.create_vector(&variadic));
    let mut batch = RecordBatchBuilder::new(builder);
    batch.add_length(signed(length));
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    if let Some(variadic) = variadic {
        batch.add_variadicBufferCounts(variadic);
    }
    batch.finish()
}

/// Returns a message with its length in front, padded so that what follows it is aligned.
fn framed(
    mut builder: FlatBufferBuilder<'_>,
    (kind, header): (MessageHeader, WIPOffset<UnionWIPOffset>),
    body: u64,
    at: u64,
) -> Vec<u8> {
    let mut message = MessageBuilder::new(&mut builder);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(kind);
    message.add_header(header);
    message.add_bodyLength(signed(body));
    let message = message.finish();
    builder.finish(message, None);
    let message = builder.finished_data();
    let end = at.saturating_add(8).saturating_add(message.len() as u64);
    let padding = end.next_multiple_of(alignment(body)) - end;
    let length = (message.len() as u64).saturating_add(padding);
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let mut framed = [[0xff; 4], length.to_le_bytes()].concat();
    framed.extend_from_slice(message);
    framed.resize(framed.len() + padding as usize, 0);
    framed
}
