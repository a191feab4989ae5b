/** Starts `barnabas testbroker` with these arguments; the command is on the path, or named by the variable BARNABAS. */
export function startTestBroker(...args: string[]): Promise<TestBroker>;

export class TestBroker {
  private constructor();
  /** Where clients connect to, separated by commas: `127.0.0.1:34567`. */
  readonly bootstrapServers: string;
  /** Address of the controls: `http://127.0.0.1:34568`. */
  readonly control: string;
  /** Asks the controls; rejects with their message when they refuse. */
  ask(method: string, path: string, body?: unknown): Promise<any>;
  /** Removes topics, groups and rules: the broker is as new. */
  reset(): Promise<void>;
  /** Makes a topic; further fields are those of POST /topics. */
  createTopic(name: string, fields?: Record<string, unknown>): Promise<void>;
  /** Adds a fault and returns its id. */
  addRule(rule: Record<string, unknown>): Promise<number>;
  /** How many requests the rule has acted on. */
  hits(id: number): Promise<number>;
  /** Ends the broker and waits for its end. */
  stop(): Promise<void>;
}
