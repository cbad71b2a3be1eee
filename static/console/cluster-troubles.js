/**
 * What is wrong with a cluster, in sentences for its operator.
 */

const FILLING = 0.8; // of the stream's bytes, from where on it waits for no keeper that is away

/** Why nodes refuse durable publishes: the reasons of the server's log, in words. */
const REASONS = {
  __proto__: null,
  auth: "NATS does not let them in",
  cluster_diverged: "they cannot go on with the stream",
  disk: "their disk cannot be written",
  free_bytes: "their disk is full",
  moved: "the files of the history were moved",
  nats_away: "NATS cannot be reached",
  no_keeper: "no keeper is there that can write",
  no_leader: "too few NATS servers run",
  stream_full: "the stream is full",
};

/**
 * The sentences, the gravest first.
 *
 * @param {{
 *   nodes: { node: string, refusal?: string | null }[],
 *   stream?: { bytes: number, max_bytes: number } | null,
 *   keepers?: { node: string, away_s: number, is_left_behind: boolean }[] | null,
 *   differs: { what: string, nodes: string[][] }[],
 * }} tick
 */
export function troubles({ nodes, stream, keepers, differs }) {
  const all = keepers ?? [];
  const behind = all.filter((each) => each.away_s > 0 && each.is_left_behind).map(({ node }) => node);
  const away = all.filter((each) => each.away_s > 0 && !each.is_left_behind).map(({ node }) => node);
  const share = stream ? stream.bytes / stream.max_bytes : 0;
  return [
    ...refusing(nodes),
    ...(share >= FILLING ? [`${Math.floor(100 * share)} % of the stream's bytes are used.`] : []),
    ...(all.length > 0 && behind.length + away.length === all.length ? ["No keeper is there that can write."] : []),
    ...(away.length > 0 ? [`Away, and waited for: ${away.join(", ")}.`] : []),
    ...(behind.length > 0 ? [`Left behind by the stream, and copying from another keeper when back: ${behind.join(", ")}.`] : []),
    ...differing(differs),
  ];
}

/** A sentence for each reason for which nodes refuse durable publishes. */
function refusing(nodes) {
  const reasons = new Set(nodes.map(({ refusal }) => refusal).filter(Boolean));
  return [...reasons].map((reason) => {
    const names = nodes.filter(({ refusal }) => refusal === reason).map(({ node }) => node);
    return `Durable publishes are refused at ${names.join(", ")}: ${REASONS[reason] ?? reason}.`;
  });
}

/** A sentence about what differs among the nodes. */
function differing(differs) {
  const each = differs.map(({ what, nodes }) => `${what} (${nodes.map((names) => names.join(" and ")).join(", unlike ")})`);
  return each.length > 0 ? [`The nodes differ in ${each.join("; ")}.`] : [];
}
