// Starts an execution, waits for its end, and prints its output: node out/client.js WORKFLOW [INPUT]
//
//   WINDLASS_ADDRESS    host:port of an api
//   WINDLASS_KEY_FILE   a file with a key of the workspace
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";

import type { JsonObject } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { ExecutionService, type StartExecutionResponse } from "./gen/windlass/api/v1/executions_pb.js";
import { Execution_State } from "./gen/windlass/api/v1/resources_pb.js";

const address = process.env.WINDLASS_ADDRESS ?? "127.0.0.1:7401";
const key = readFileSync(process.env.WINDLASS_KEY_FILE ?? ".windlass/admin.key", "utf8").trim();

const withKey: Interceptor = (next) => (request) => {
  request.header.set("authorization", `Bearer ${key}`);
  return next(request);
};

const executions = createClient(
  ExecutionService,
  createGrpcTransport({ baseUrl: `http://${address}`, interceptors: [withKey] }),
);

// A call whose answer was lost is repeated under its request id, so that it starts nothing twice.
async function run(workflow: string, input: JsonObject): Promise<StartExecutionResponse> {
  const request = { workflow, input, requestId: randomUUID(), wait: { seconds: 30n } };
  for (let tries = 1; ; tries++) {
    try {
      return await executions.startExecution(request);
    } catch (error) {
      const failure = ConnectError.from(error);
      if (failure.code !== Code.Unavailable || tries === 5) throw failure;
    }
  }
}

try {
  const [workflow = "", input = "{}"] = process.argv.slice(2);
  const { execution } = await run(workflow, JSON.parse(input));
  console.log(Execution_State[execution?.state ?? 0], JSON.stringify(execution?.output));
} catch (error) {
  // The reason is one of docs/errors.md.
  const [info] = ConnectError.from(error).findDetails(ErrorInfoSchema);
  console.error(info?.reason, ConnectError.from(error).rawMessage);
  process.exitCode = 1;
}
